"""What clients say of their output's form becomes the source of a grammar that engines compile. Pure."""
