"""A chat template that knows tools and thoughts, for models whose own does not."""

import shutil
from pathlib import Path


def with_tools(model_dir: Path, folder: Path) -> Path:
    """Make `folder` the same model under that template: links to its files, and the template."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in model_dir.iterdir():
        (folder / file.name).symlink_to(file)
    shutil.copy(Path(__file__).parent / "tools_template.jinja", folder / "chat_template.jinja")
    return folder
