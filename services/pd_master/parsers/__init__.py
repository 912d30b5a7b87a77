"""What models write becomes reasoning, text and tool calls; one small file per model family.

Every family is a generator over a `Reader`: it takes text as it comes and puts pieces into an `Output`, so a stream
and a whole answer are parsed by the same code and give the same result.
"""
