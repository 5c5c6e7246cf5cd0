"""An author's tests make views from the fields that matter."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from vtcore.interfaces.scheduler_policy import PolicyContext, RunningView, WaitingView
from vtcore.testing.policy_views import policy_context, running_view, waiting_view


def test_views_have_a_plain_value_for_every_field_that_is_not_given() -> None:
    assert waiting_view(tenant="a", priority=3) != waiting_view()
    assert (waiting_view(tenant="a").tenant, waiting_view().tenant) == ("a", "")
    assert running_view(num_freeable=(2,)).num_freeable == (2,)
    assert policy_context(budget=1).budget == 1


@pytest.mark.parametrize("make", [waiting_view, running_view, policy_context])
def test_a_field_that_a_view_does_not_have_is_refused(make: object) -> None:
    with pytest.raises(TypeError, match="tennant"):
        make(tennant="a")  # type: ignore[operator]


@pytest.mark.parametrize("shown", [WaitingView, RunningView, PolicyContext])
def test_every_field_that_a_policy_is_shown_is_explained(shown: type) -> None:
    page = (Path(__file__).parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
    name = shown.__name__
    places = (name,) if shown is PolicyContext else (name, "both views")
    rows = [line for line in page.splitlines() if line.startswith(tuple(f"| {place} |" for place in places))]
    assert [f.name for f in attrs.fields(shown) if not any(f"`{f.name}`" in row for row in rows)] == []
