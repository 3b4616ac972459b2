"""The type of a setting that names an entry of a registry."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mptui.registry.own_code import is_own


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    """Annotates text that must be a key of `registry`, as of the time of the check.

    With `or_own`, it may name the person's own code instead: `package.module:name`.
    """

    registry: Collection[str]
    or_own: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Add the check to the schema of `str`."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, name: str) -> str:
        if name not in self.registry and not (self.or_own and is_own(name)):
            own = ["package.module:name"] if self.or_own else []
            words = " or ".join(repr(word) for word in [*self.registry, *own])
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": words})
        return name
