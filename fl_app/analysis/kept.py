"""What a command came to on a run, kept in its directory as one JSON file."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fl_app.store.files import RunError, write_atomic


class Kept(BaseModel):
    """Results that are written to `file` by `thorns COMMAND` and read back whole, or not at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: ClassVar[str]
    command: ClassVar[str]

    def save(self, run: Path) -> Path:
        """Keep them in a run directory."""
        path = run / self.file
        write_atomic(path, self.model_dump_json(indent=1))
        return path

    @classmethod
    def load(cls, run: Path) -> Self | None:
        """Those of a run directory; None if there are none, RunError if the file is damaged."""
        path = run / cls.file
        if not path.exists():
            return None
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, OSError, UnicodeDecodeError) as error:
            why = str(error).splitlines()[0]
            raise RunError(f"{path} cannot be read: run `thorns {cls.command}` again ({why})") from error
