"""Device files: every one of them is checked, and a damaged one is told by file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

import poet
from poet._devices import data_folder, find_device, load_device

PAPERS = ("m0", "m4", "a72", "a72nocache", "jetsontx2")
FILES = [name for name in poet.device_names() if name != "host"]


@pytest.mark.parametrize("name", FILES)
def test_every_number_has_a_source_a_date_and_a_basis(name: str) -> None:
    device = find_device(name)
    assert device.name == name
    for section in ("memory", "compute", "power", "store"):
        assert any(place.startswith(section + ".") for place in device.numbers)
    for place, number in device.numbers.items():
        assert number.source and number.date[:2] == "20", place
        assert number.basis in ("measured", "datasheet", "estimate"), place
    assert device.profile.has_rates and device.profile.has_store
    assert device.profile.ram_bytes > 0
    assert "[power]" in device.profile.energy_source


def test_the_devices_that_were_asked_for_are_there() -> None:
    others = {"rp2040", "rp2350", "esp32s3", "stm32f746", "stm32h743", "raspberrypi5"}
    others |= {"jetsonorinnano", "phone", "h100", "h200", "host"}
    assert set(poet.device_names()) == others | set(PAPERS)
    assert [name for name in FILES if find_device(name).paper is not None] == sorted(PAPERS)


def test_a72_draws_its_own_watts_in_the_new_model_and_49_9_in_the_papers() -> None:
    device = find_device("a72")
    assert device.profile.compute_watts == 3.0
    assert device.paper is not None
    assert device.paper.compute_watts == pytest.approx(49.86, abs=0.01)
    # docs/costs.md: the efficiency is that of the board without caches.
    slow = find_device("a72nocache").paper
    assert slow is not None
    assert slow.compute_watts == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize(
    ("got", "near"), [("m5", "'m4'"), ("jetson", "'jetsontx2'"), ("RP2041", "'rp2040'")]
)
def test_an_unknown_name_offers_the_nearest(got: str, near: str) -> None:
    with pytest.raises(poet.ArgumentError) as info:
        find_device(got)
    assert f"got '{got}'" in str(info.value)
    assert near in str(info.value).split("Known:")[0]


def damaged(tmp_path: Path, old: str, new: str) -> Path:
    text = (data_folder("profiles", "profiles") / "m4.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


DAMAGE = [
    ("ram_bytes = { value = 262144,", "ram_bytes = { value = -5,", "memory.ram_bytes", "-5"),
    ("matmul_rate =", "matmul_speed =", "compute", "matmul_speed"),
    ("compute_watts = { value = 0.0109824,", "compute_watts = { value = 1e9,", "power", "1000000"),
    ("idle_watts = { value = 1e-05,", "idle_watts = { value = nan,", "power.idle_watts", "nan"),
    ('basis = "datasheet", source = "nrf52840" }', 'source = "nrf52840" }', "memory", "basis"),
    ('ram_bytes = { value = 262144, basis = "datasheet", source = "nrf52840"',
     'ram_bytes = { value = 262144, basis = "datasheet", source = "hearsay"', "memory", "hearsay"),
    ("compute_watts = { value = 0.0109824,", "compute_watts = { value = 0,", "power", "0"),
    ('kernels = "direct"', 'kernels = "magic"', "kernels", "magic"),
    ("dma_channels = { value = 0,", "dma_channels = { value = 0.5,", "store.dma_channels", "0.5"),
    ('date = "2021-11"', 'date = "2099-02-30"', "sources.nrf52840.date", "2099-02-30"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "field", "said"), DAMAGE)
def test_a_damaged_file_is_told_by_file_line_and_field(
    tmp_path: Path, old: str, new: str, field: str, said: str
) -> None:
    path = damaged(tmp_path, old, new)
    lines = path.read_text(encoding="utf-8").splitlines()
    expected = {
        n for n, line in enumerate(lines, start=1) if new.split(" =", maxsplit=1)[0] in line
    }
    with pytest.raises(poet.FormatError) as info:
        load_device(path)
    message = str(info.value)
    assert message.startswith(f"{path}:")
    line = int(message.removeprefix(f"{path}:").split(":")[0])
    assert field in message and said in message
    assert line in expected or lines[line - 1].startswith(f"[{field}")


def test_a_missing_field_names_its_section(tmp_path: Path) -> None:
    path = damaged(tmp_path, "[power]", "[power]\n# compute_watts is gone")
    text = path.read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith("compute_watts")]
    path.write_text("\n".join(kept), encoding="utf-8")
    with pytest.raises(poet.FormatError, match=r"power: 'compute_watts' is a required property"):
        load_device(path)


def test_a_file_of_ones_own_is_a_platform(tmp_path: Path) -> None:
    path = damaged(tmp_path, 'name = "m4"', 'name = "mine"')
    schedule = poet.solve(model="linear", graph="paper", platform=path, ram_budget=3708)
    assert schedule.device is not None
    assert schedule.device.name == "mine"


@pytest.mark.parametrize("text", [b"\xff\xfe", b"not = = toml", b""])
def test_what_is_no_device_file_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text)
    with pytest.raises(poet.FormatError, match=r"broken\.toml"):
        load_device(path)
    with pytest.raises(poet.PoetRuntimeError, match="cannot read"):
        load_device(tmp_path / "absent.toml")
    with pytest.raises(poet.ArgumentError, match="platform: expected"):
        find_device(7)
