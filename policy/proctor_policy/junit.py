"""Results of rule tests in the form that CI systems read (JUnit XML)."""

from collections.abc import Sequence
from xml.etree import ElementTree

from proctor_policy.cases import Result


def document(results: Sequence[Result]) -> str:
    """Return the results as one XML document."""
    failed = sum(bool(result.problems) for result in results)
    suite = ElementTree.Element(
        "testsuite", name="proctor policy test", tests=str(len(results)), failures=str(failed)
    )
    for result in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=result.case.file, name=result.case.name
        )
        if result.problems:
            failure = ElementTree.SubElement(case, "failure", message=result.problems[0].message)
            failure.text = "\n".join(map(str, result.problems))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
