"""The credit of stored turns: what is written is what training used, and damage is reported."""

import pytest
from toys import meta

from mage.config.sections import ReturnOptions
from mage.credit.advantages.gigpo import estimate
from mage.credit.samples import assign_credit
from mage.run_folder import RunError
from mage.run_folder.turn_files import read_credits, write_credits


def test_stored_credit_equals_the_credit_of_training(tmp_path):
    """Lost then won, and won twice; discounts 1. By hand: returns 10, 20 and 10, 0."""
    (tmp_path / "episodes").mkdir()
    metas = [meta((-10.0, 10.0), member=0), meta((10.0, 10.0), member=1)]
    options = ReturnOptions(kind="differential", step_discount=1.0, episode_discount=1.0)
    credits = assign_credit(metas, options, estimate)
    write_credits(tmp_path, 7, credits)
    stored = read_credits(tmp_path, "step_000007")
    assert [one.advantage for one in stored] == [one.advantage for one in credits]
    assert [one.value for one in stored] == [one.source.value for one in credits]
    first = {(one.member, one.episode): one.episode_value for one in stored}
    assert first == {(0, 0): 10.0, (0, 1): 20.0, (1, 0): 10.0, (1, 1): 0.0}
    assert all(one.advantage == pytest.approx(sum(one.parts.values())) for one in stored)


def test_an_update_without_stored_credit_has_none(tmp_path):
    assert read_credits(tmp_path, "step_000001") == []


def test_a_damaged_file_gives_one_clear_message(tmp_path):
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "step_000001.credit.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(RunError, match="is damaged"):
        read_credits(tmp_path, "step_000001")
