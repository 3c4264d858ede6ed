"""Device files (profiles/*.toml): what a device has and does, each number with its source."""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poet import _C
from poet._errors import ArgumentError, FormatError, PoetRuntimeError
from poet._names import unknown_name

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10
    import tomli as tomllib

HOST = "host"
_SCHEMA = "device.schema.json"
_LONGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Number:
    """A number of a device file.

    Attributes:
        value: in the unit that its field's name says (bytes, seconds, watts, joules; rates are
            flops or bytes a second).
        basis: "measured", "datasheet" or "estimate".
        source: title of what it was taken from.
        date: of the source: "2021", "2021-11" or "2021-11-30".
        note: how it was derived; may be empty.
    """

    value: float
    basis: str
    source: str
    date: str
    note: str


@dataclass(frozen=True)
class Device:
    """A device file that has been read and checked.

    Attributes:
        name: as `platform=` takes it.
        title: for people.
        profile: what planners and the simulator know of it.
        paper: POET's own constants as a profile, for `cost_model="paper"`; None where it has none.
        numbers: every number by its place, such as "compute.matmul_rate".
    """

    name: str
    title: str
    profile: _C.DeviceProfile
    paper: _C.DeviceProfile | None
    numbers: Mapping[str, Number]


def device_names() -> list[str]:
    """The devices that come with poet, "host" first."""
    return [HOST, *sorted(path.stem for path in _folder().glob("*.toml"))]


def find_device(platform: object) -> Device:
    """The device of that name, or of the file at that path.

    Args:
        platform: one of `device_names()`, or the path of a file that ends in ".toml".

    Raises:
        ArgumentError: there is no such device; the message offers the nearest names.
        FormatError: the file is no device file; the message names file, line and field.
        PoetRuntimeError: the file cannot be read.
    """
    if not isinstance(platform, str | os.PathLike):
        raise ArgumentError(
            "platform: expected the name of a device or the path of a device file as a str; got "
            f"{platform!r}."
        )
    text = os.fspath(platform)
    if text not in device_names() and text.lower() in (*device_names(), HOST):
        text = text.lower()
    if text == HOST:
        host = _C.DeviceProfile.by_name(HOST)
        return Device(HOST, "the machine that poet runs on", host, None, {})
    if text.endswith(".toml") or os.sep in text:
        return load_device(text)
    if text not in device_names():
        raise unknown_name("platform", "a device", text, device_names(), "or the path of a .toml")
    return _own_device(text)


@functools.cache
def _own_device(name: str) -> Device:
    return load_device(_folder() / f"{name}.toml")


def load_device(path: str | os.PathLike[str]) -> Device:
    """Reads and checks a device file.

    Raises:
        FormatError: it is none; the message names file, line and field.
        PoetRuntimeError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise PoetRuntimeError(
            f"platform: cannot read {os.fspath(path)}: {error.strerror}."
        ) from error
    if len(data) > _LONGEST_FILE:
        raise FormatError(f"{os.fspath(path)}: expected a device file below {_LONGEST_FILE} bytes.")
    return _Reader(os.fspath(path), data).device()


class _Reader:
    """Checks one device file against the schema and makes a Device of it."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        try:
            self._text = data.decode("utf-8")
            self._document: dict[str, Any] = tomllib.loads(self._text)
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FormatError(f"{path}: not a TOML file: {error}.") from error
        self._check()

    def device(self) -> Device:
        name = self._document["name"]
        return Device(
            name=name,
            title=self._document["title"],
            profile=self._profile(),
            paper=self._paper(),
            numbers={place: self._number(place, stated) for place, stated in self._stated()},
        )

    def _check(self) -> None:
        from jsonschema import Draft202012Validator  # noqa: PLC0415  heavy, and not always needed

        validator = Draft202012Validator(_schema())
        errors = sorted(
            validator.iter_errors(self._document), key=lambda error: self._line(list(error.path))
        )
        if errors:
            place = list(errors[0].path)
            raise self._error([str(part) for part in place], errors[0].message)
        for name, source in self._document["sources"].items():
            if not _is_in_calendar(source["date"]):
                message = f"expected a day of the calendar, got {source['date']!r}"
                raise self._error(["sources", name, "date"], message)
        for field, stated in self._stated():
            if math.isnan(stated["value"]):  # which the schema lets pass
                raise self._error(field.split("."), "expected a number, got nan")
            if stated["source"] not in self._document["sources"]:
                known = ", ".join(self._document["sources"])
                message = f"source {stated['source']!r} is not among [sources]: {known}"
                raise self._error(field.split("."), message)

    def _error(self, place: list[str], message: str) -> FormatError:
        field = ".".join(place) or "the file"
        return FormatError(
            f"{self._path}:{self._line(place)}: {field}: {message}. profiles/README.md says what "
            "each field holds."
        )

    def _line(self, place: list[Any]) -> int:
        """The line (from 1 on) of a field, or of the section that lacks it."""
        lines = self._text.splitlines()
        if not place:
            return 1
        section, found = "", 1
        names = [str(part) for part in place]
        for number, line in enumerate(lines, start=1):
            header = re.match(r"\s*\[([^\]]+)\]", line)
            if header:
                section = header[1].strip()
                if names == section.split(".")[: len(names)] or section == names[0]:
                    found = number
                continue
            key = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
            if key:
                here = [*section.split("."), key[1]] if section else [key[1]]
                if here == names[: len(here)]:
                    return number
        return found

    def _stated(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for section in ("memory", "compute", "power", "store", "paper"):
            for field, stated in self._document.get(section, {}).items():
                if isinstance(stated, dict):
                    yield f"{section}.{field}", stated

    def _number(self, place: str, stated: dict[str, Any]) -> Number:
        source = self._document["sources"][stated["source"]]
        return Number(
            value=stated["value"],
            basis=stated["basis"],
            source=source["title"],
            date=source["date"],
            note=stated.get("note", ""),
        )

    def _values(self, section: str) -> dict[str, float]:
        fields = self._document.get(section, {})
        return {key: each["value"] for key, each in fields.items() if isinstance(each, dict)}

    def _titles(self, section: str) -> str:
        used = {
            stated["source"]: stated["basis"]
            for place, stated in self._stated()
            if place.startswith(section + ".")
        }
        texts = [
            f"{self._document['sources'][key]['title']} ({self._document['sources'][key]['date']})"
            for key in used
        ]
        bases = sorted(
            {s["basis"] for place, s in self._stated() if place.startswith(section + ".")}
        )
        return f"{self._path_name()}, [{section}]: {', '.join(bases)}; {'; '.join(texts)}"

    def _path_name(self) -> str:
        return os.path.basename(self._path)

    def _profile(self) -> _C.DeviceProfile:
        record: dict[str, Any] = {"format": "poet-profile", "version": 1}
        record["name"] = self._document["name"]
        record |= self._values("memory") | self._values("compute") | self._values("power")
        store = self._values("store")
        if store:
            record |= {f"store_{key}": store[key] for key in _STORE_FIELDS}
            record |= {key: store[key] for key in ("dma_channels", "wake_joules")}
            record["store_source"] = self._titles("store")
        record["direct_kernels"] = self._document["kernels"] == "direct"
        record["energy_source"] = self._titles("power")
        return _C.DeviceProfile.from_json(json.dumps(record))

    def _paper(self) -> _C.DeviceProfile | None:
        """POET's cost formulae: compute watts are the flop rate over the flops per joule."""
        stated = self._values("paper")
        if not stated:
            return None
        rate = stated["flop_rate"]
        record = {
            "format": "poet-profile",
            "version": 1,
            "name": self._document["name"],
            "compute_watts": rate / stated["flops_per_joule"],
            "store_watts": stated["memory_watts"],
            "convolution_rate": rate,
            "matmul_rate": rate,
            "elementwise_rate": rate,
            "ram_bytes": self._values("memory")["ram_bytes"],
            "flash_bytes": self._values("memory")["flash_bytes"],
            "direct_kernels": True,
            "energy_source": self._titles("paper"),
            "store_source": self._titles("paper"),
        }
        record |= {f"store_{key}": stated[key] for key in _STORE_FIELDS}
        return _C.DeviceProfile.from_json(json.dumps(record))


_STORE_FIELDS = ("read_rate", "write_rate", "read_latency_seconds", "write_latency_seconds")


def _is_in_calendar(date: str) -> bool:
    """Of a date as the schema has it, which knows of no month how long it is."""
    try:
        datetime.date.fromisoformat(date + "0000-01-01"[len(date) :])
    except ValueError:
        return False
    return True


@functools.cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((_folder() / _SCHEMA).read_text(encoding="utf-8"))
    return schema


@functools.cache
def _folder() -> Path:
    return data_folder("profiles", "profiles")


def data_folder(installed: str, in_repository: str) -> Path:
    """A folder of data: beside the package where it is installed, else in the repository.

    Raises:
        PoetRuntimeError: it is in neither.
    """
    here = Path(__file__).resolve()
    candidates = [
        Path(_C.__file__).parent / installed,
        Path(__file__).parent / installed,
        here.parents[2] / in_repository,
    ]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise PoetRuntimeError(
        f"poet's data folder {installed!r} was expected at {candidates[0]}, and is not there. "
        "Install poet again."
    )


__all__ = ["HOST", "Device", "Number", "device_names", "find_device", "load_device"]
