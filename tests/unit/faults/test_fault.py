"""Faults as files and forms say them."""

import pytest
import yaml
from pydantic import ValidationError

from fleet.faults.fault import ConditionStatus, FaultSpec, document_of


@pytest.mark.parametrize("word", ["True", "'True'", "true"])
def test_the_status_of_a_condition_needs_no_quotes(word: str) -> None:
    text = f"{{type: NodeCondition, condition: KernelDeadlock, status: {word}}}"
    found = FaultSpec.model_validate(yaml.safe_load(text))
    assert found.status is ConditionStatus.TRUE
    assert FaultSpec.model_validate(document_of(found)) == found


def test_a_status_is_one_of_three() -> None:
    given = {"type": "NodeCondition", "condition": "KernelDeadlock", "status": "Odd"}
    with pytest.raises(ValidationError, match="'True', 'False' or 'Unknown'"):
        FaultSpec.model_validate(given)
    schema = FaultSpec.model_json_schema()
    assert schema["$defs"]["ConditionStatus"]["enum"] == ["True", "False", "Unknown"]
