"""What stands between a change and a release: versions, changelogs, builds that differ, what CI and README say."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import noxfile
import pytest
from build_twice import check_wheel, compare
from changelog import check_release

ROOT = Path(__file__).parents[1]
PROJECT = '[project]\nname = "mtnlg-some"\nversion = "0.2.0"\n'
CHANGES = "# Changes of mtnlg-some\n\n## 0.2.0\n\n- New.\n\n## 0.1.0\n\n- Old.\n"


def package(folder: Path, changes: str) -> Path:
    folder = folder / "mtnlg-some"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "CHANGELOG.md").write_text(changes)
    return folder


def test_version_with_a_changelog_section_is_releasable(tmp_path: Path) -> None:
    tags = ["mtnlg-some-v0.1.0", "mtnlg-other-v3.0.0"]
    check_release(package(tmp_path, CHANGES), tags, final=True)


@pytest.mark.parametrize(
    ("changes", "tags", "message"),
    [
        (CHANGES.replace("0.2.0", "0.3.0"), [], r"CHANGELOG.md: newest version \['0.3.0'\], pyproject.toml has 0.2.0"),
        ("# Changes of mtnlg-some\n", [], r"newest version \[\]"),
        (CHANGES.replace("- New.", ""), [], "section 0.2.0 has no change"),
        (CHANGES + "\n## 0.1.5\n\n- Between.\n", [], "put the newest first"),
        (CHANGES + "\n## Unreleased\n\n- Lost.\n", [], "Unreleased before all"),
        (CHANGES.replace("## 0.2.0", "## Unreleased\n\n- Next.\n\n## 0.2.0"), [], "changes are Unreleased"),
        (CHANGES, ["mtnlg-some-v0.2.0"], "version 0.2.0 is not after 0.2.0, which is tagged"),
        (CHANGES, ["mtnlg-some-v0.10.0"], "not after 0.10.0"),
    ],
)
def test_a_release_that_does_not_agree_with_itself_is_refused(
    tmp_path: Path, changes: str, tags: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_release(package(tmp_path, changes), tags, final=True)


def test_unreleased_changes_are_allowed_after_a_tag(tmp_path: Path) -> None:
    changes = CHANGES.replace("## 0.2.0", "## Unreleased\n\n- Next.\n\n## 0.2.0")
    check_release(package(tmp_path, changes), ["mtnlg-some-v0.2.0"], final=False)


def test_every_package_agrees_with_its_changelog() -> None:
    for folder in sorted((ROOT / "packages").glob("mtnlg-*")):
        check_release(folder, [], final=False)


@pytest.mark.parametrize("name", noxfile.PACKAGES)
def test_workflow_tests_the_declared_pythons(name: str) -> None:
    workflow = (ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8")
    pythons = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert pythons
    left_out = re.findall(rf'\{{ package: {name}, python: "(.*)" \}}', workflow)
    metadata = (ROOT / "packages" / f"mtnlg-{name}" / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\..*)"', metadata)
    assert sorted([*named, *left_out]) == sorted(re.findall(r'"(.*?)"', pythons[1]))


def test_two_builds_that_differ_in_a_byte_or_a_file_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        (folder / "some.whl").write_bytes(b"same")
    compare(first, second)
    (second / "some.whl").write_bytes(b"also")
    with pytest.raises(ValueError, match=r"some\.whl: two builds differ"):
        compare(first, second)
    (second / "some.whl").write_bytes(b"same")
    (second / "more.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"more\.tar\.gz: two builds differ"):
        compare(first, second)


@pytest.mark.parametrize(
    ("left_out", "added", "message"),
    [
        ("", "", ""),
        ("mtnlg_some-0.2.0.dist-info/sboms/sbom.cdx.json", "", "without .*sbom"),
        ("mtnlg_some/py.typed", "", "without .*py.typed"),
        ("", "tests/test_some.py", "tests/test_some.py is not of mtnlg_some"),
    ],
)
def test_wheel_holds_package_licence_and_bill_of_materials(
    tmp_path: Path, left_out: str, added: str, message: str
) -> None:
    info = "mtnlg_some-0.2.0.dist-info"
    names = {"mtnlg_some/py.typed", f"{info}/licenses/LICENSE", f"{info}/sboms/sbom.cdx.json"} - {left_out}
    path = tmp_path / "mtnlg_some-0.2.0-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        for name in sorted({*names, added} - {""}):
            wheel.writestr(name, "")
    if not message:
        check_wheel(path)
        return
    with pytest.raises(ValueError, match=message):
        check_wheel(path)


def test_every_benchmark_against_other_tools_exists() -> None:
    scripts = {words.split()[0] for words in noxfile.AGAINST_PEERS.values()}
    assert not [script for script in scripts if not (ROOT / "benchmarks" / f"{script}.py").exists()]


def test_oldest_dependencies_suit_all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {
        "data": ["numpy>=1.26,<3", "torch>=2.6,<3"],
        "model": ["numpy>=1.9,<3"],
        "parallel": ["mtnlg-data>=0.3,<1"],
    }
    monkeypatch.setattr(noxfile, "PACKAGES", tuple(needs))
    monkeypatch.setattr(noxfile, "project_of", lambda package: {"dependencies": needs[package]})
    assert noxfile.dependencies("oldest") == ["numpy==1.26"]
    assert noxfile.dependencies("newest") == ["numpy>=1.26,<3", "numpy>=1.9,<3"]
