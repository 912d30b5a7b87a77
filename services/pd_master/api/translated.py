"""Bodies of other APIs become chat bodies; what is wrong with one is said by the name that its client knows."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.common.errors import InvalidRequestError


class FieldNames:
    """One API's names of the chat's fields."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: pattern of a chat body's field -> the API's own, in the order in which they are tried. What comes
        behind a field in a path stays."""
        self._names = [(re.compile(rf"(?:{theirs})(?![^.\[])"), own) for theirs, own in names.items()]

    @contextmanager
    def translating(self) -> Iterator[None]:
        """InvalidRequestErrors that leave the block have the API's names."""
        try:
            yield
        except InvalidRequestError as error:
            if error.param is not None:
                own = self.own(error.param)
                error.message = error.message.replace(error.param, own, 1)
                error.param = own
            raise

    def own(self, param: str) -> str:
        """The API's own name of a chat body's field."""
        for pattern, own in self._names:
            if found := pattern.match(param):
                return found.expand(own) + param[found.end() :]
        return param
