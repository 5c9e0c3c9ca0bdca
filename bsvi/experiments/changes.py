"""Changes to an experiment's settings: from a TOML file, from fields by name, and in what two configurations differ."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from bsvi.experiments.config import Experiment
from bsvi.system.files import printable
from bsvi.tables.words import suggest

LARGEST_TOML = 1 << 20


def read_toml(path: Path, base: Experiment) -> Experiment:
    """``base`` with the fields of a TOML file; an unknown or wrong field is one line that names it."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_TOML + 1)
        if len(text) > LARGEST_TOML:
            raise ValueError(f"more than {LARGEST_TOML:,} bytes")
        given = tomllib.loads(text.decode())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); name an existing TOML file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not TOML: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {printable(error, 200)}") from None
    except RecursionError:
        raise ValueError(f"{path} is not TOML: it is nested too deep") from None
    return update_experiment(base, given, str(path))


def update_experiment(base: Experiment, given: Any, source: str) -> Experiment:
    """``base`` with nested fields replaced; errors name the field, and the nearest one that exists."""

    if not isinstance(given, dict):
        raise ValueError(f"{source}: a configuration is a table of fields, got {given!r:.80}")

    def merge(settings: BaseModel, values: dict[str, Any], prefix: str) -> dict[str, Any]:
        merged = settings.model_dump()
        for key, value in values.items():
            if key not in merged:
                hint = suggest(key, merged).strip() or f"there are {', '.join(merged)}"
                raise ValueError(f"{source}: unknown field {prefix}{key:.80}; {hint}")
            inner = getattr(settings, key)
            if isinstance(inner, BaseModel):
                if not isinstance(value, dict):
                    raise ValueError(f"{source}: {prefix}{key} is a table, got {value!r:.80}; write [{prefix}{key}]")
                value = merge(inner, value, f"{prefix}{key}.")
            merged[key] = value
        return merged

    try:
        return Experiment.model_validate(merge(base, given, ""))
    except ValidationError as error:
        raise ValueError(f"{source}: {describe_first_problem(error)}") from None


def describe_first_problem(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: field, what was got, what is wanted."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    text = problem["msg"].removeprefix("Value error, ")
    return f"{field} = {problem['input']!r:.80}: {text[0].lower()}{text[1:]}"


def list_differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """The fields in which two configurations differ, as 'svi.lr: 0.02 -> 0.1'."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += list_differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines
