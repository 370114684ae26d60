"""A package's software bill of materials (CycloneDX 1.6): what it needs, required or for an extra, and in which range.

Nothing of others is inside our wheels, so the components are the declared dependencies; which version of each is
installed is for the one who installs. The text has no date and no random number: it changes with pyproject.toml alone.
It stands in the package's folder as ``sbom.cdx.json``; hatchling puts it into the wheel's .dist-info/sboms (PEP 770).
"""

from __future__ import annotations

import json
import sys
import tomllib
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable


def main() -> None:
    """Rewrite each package's bill, and end with status 1 if one was another."""
    changed = []
    for package in sorted(Path("packages").glob("mtnlg-*")):
        path, text = package / "sbom.cdx.json", bill_of_materials(package)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(str(path))
    if changed:
        sys.exit(f"{', '.join(changed)}: not that of pyproject.toml; rewritten, commit it")


def bill_of_materials(package: Path) -> str:
    """Return the bill of the package in a folder, valid by CycloneDX's schema; the same text on any machine and day."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    itself = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.LIBRARY,
        description=project["description"],
        licenses=[LicenseExpression(project["license"])],
        purl=PackageURL("pypi", name=project["name"], version=project["version"]),
        bom_ref=project["name"],
    )
    required = set(components(project["dependencies"], ComponentScope.REQUIRED))
    extras = [word for name, words in project["optional-dependencies"].items() if name != "test" for word in words]
    named = {component.name for component in required}
    optional = {part for part in components(extras, ComponentScope.OPTIONAL) if part.name not in named}
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(itself.purl)), components=required | optional)
    bom.metadata.component = itself
    bom.register_dependency(itself, required)
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    del content["metadata"]["timestamp"]
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"{package}: its bill is not CycloneDX 1.6: {error}")
    return text


def components(words: Iterable[str], scope: ComponentScope) -> list[Component]:
    """Return a component for each requirement; its range and marker are a property."""
    return [
        Component(
            name=requirement.name,
            type=ComponentType.LIBRARY,
            scope=scope,
            purl=PackageURL("pypi", name=requirement.name),
            bom_ref=requirement.name,
            properties=[Property(name="requirement", value=str(requirement))],
        )
        for requirement in map(Requirement, words)
    ]


if __name__ == "__main__":
    main()
