"""A real engine under the policy: who is served when, and that the outputs are those of any other policy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from vtcore_fair_share import plugin
from vtcore_fair_share.accounts import ServiceAccounts
from vtcore_qwen3_5_dense import plugin as qwen

from vtcore import LLM, SamplingParams
from vtcore.errors import ConfigError, RequestError

TENANTS = ("heavy",) * 6 + ("light",) * 2
PROMPTS = [{"prompt_token_ids": [20 + index] * 9} for index in range(len(TENANTS))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture
def load(tiny_checkpoint: Callable[..., Path], engine_factory: Callable[..., LLM]) -> Callable[..., LLM]:
    def make(**options: object) -> LLM:
        given = {"max_num_seqs": 1, "max_model_len": 64, "skip_tokenizer_init": True, **options}
        return engine_factory(tiny_checkpoint("qwen3_5_dense", qwen), qwen, plugin, **given)

    return make


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indices of requests in the order in which they end; the core names them in the order of arrival."""
    ids: list[str] = []
    arrive, finish = ServiceAccounts.arrive, ServiceAccounts.finish
    order: list[int] = []

    def arriving(self: ServiceAccounts, request_id: str, *rest: object) -> float:
        ids.append(request_id)
        return arrive(self, request_id, *rest)

    def finishing(self: ServiceAccounts, request_id: str, num_output: int) -> None:
        order.append(ids.index(request_id))
        finish(self, request_id, num_output)

    monkeypatch.setattr(ServiceAccounts, "arrive", arriving)
    monkeypatch.setattr(ServiceAccounts, "finish", finishing)
    return order


@pytest.mark.parametrize(
    ("weights", "order"),
    [({}, [0, 6, 1, 7, 2, 3, 4, 5]), ({"heavy": 4}, [0, 6, 1, 2, 3, 4, 7, 5])],
)
def test_tenants_take_turns_by_weight_and_outputs_stay_as_they_are(
    load: Callable[..., LLM],
    finished: list[int],
    caplog: pytest.LogCaptureFixture,
    weights: dict[str, int],
    order: list[int],
) -> None:
    wanted = load().generate(PROMPTS, GREEDY, tenant=TENANTS, use_tqdm=False)
    llm = load(scheduling_policy="fair_share", policy_config={"weights": weights})
    with caplog.at_level(logging.WARNING, logger="vtcore"):
        found = llm.generate(PROMPTS, GREEDY, tenant=TENANTS, use_tqdm=False)
        # The core tells of the last ends with its next step.
        llm.generate(PROMPTS[0], GREEDY, tenant="other", use_tqdm=False)
    assert [one.outputs for one in found] == [one.outputs for one in wanted]
    assert finished[: len(order)] == order
    assert "loses its turn" not in caplog.text


def test_what_the_options_refuse_is_named_before_weights_are_read(load: Callable[..., LLM]) -> None:
    with pytest.raises(ConfigError, match=r"\$\.policy_config\.weights.*'a' is 0.*not from 1e-06 to 1e\+06"):
        load(scheduling_policy="fair_share", policy_config={"weights": {"a": 0}})


def test_a_request_cannot_raise_its_own_share(load: Callable[..., LLM]) -> None:
    llm = load(scheduling_policy="fair_share")
    with pytest.raises(RequestError, match="takes none from requests"):
        llm.generate(PROMPTS[0], GREEDY, policy_args={"weight": 9}, use_tqdm=False)
