"""`vtcore generate --input FILE --output FILE`: many requests, each result kept as soon as it is there.

Does not: hold all requests or results; a bounded window of them is with the engine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen
from tqdm import tqdm

from vtcore.cli.batch_checks import check_line
from vtcore.cli.batch_file import START_ANEW, BatchOutput
from vtcore.cli.batch_input import (
    CHAT_KEYS,
    CHAT_SWITCHES,
    BatchInput,
    BatchRequest,
    LineError,
    Place,
    parse_request,
)
from vtcore.cli.interruption import interrupted_code
from vtcore.cli.own_stdout import others_print_to_stderr
from vtcore.cli.sampling_flags import with_whole_context
from vtcore.cli.terminal import say
from vtcore.engine.chat import ChatRenderer, ChatRequest, build_chat_renderer
from vtcore.engine.interrupts import interrupts_deferred
from vtcore.errors import ConfigError, RequestError, UsageError
from vtcore.outputs import RequestOutput, output_as_json
from vtcore.request import child_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from vtcore.engine.engine import CheckedRequest, Engine
    from vtcore.request_handling import Handling

MAX_PROBLEMS = 20
"""Wrong lines that are named; the rest are counted."""
WINDOW_PER_ROW = 4
"""Requests with the engine, per request that runs at once: enough for a policy to choose among."""


@frozen
class _Ready:
    """A line that can be served."""

    place: Place
    request: BatchRequest
    checked: CheckedRequest
    digest: str


class Batch:
    """One run over one input.

    Args:
        given: Sampling parameters of the flags.
        handling: Of the flags; a line's own wins.
        shows_progress: Whether a bar is drawn on stderr.
        has_text: Whether the engine will have a tokenizer.

    Attributes:
        num_lines: Requests in the input; None until all are read.
        num_run: Requests that had no result before.
        num_tokens: Made so far.
    """

    def __init__(
        self,
        source: BatchInput,
        sink: BatchOutput,
        given: Mapping[str, Any],
        handling: Handling,
        shows_progress: bool,
        has_text: bool = True,
    ) -> None:
        self.source = source
        self.sink = sink
        self.given = given
        self.handling = handling
        self.shows_progress = shows_progress
        self.has_text = has_text
        self.num_lines: int | None = None
        self.num_run = 0
        self.num_tokens = 0
        self._renderer: ChatRenderer | None = None

    def check_form(self) -> None:
        """Find what is wrong with lines before a model is there.

        Raises:
            ConfigError: Lines are no requests, or the file has none.
        """
        problems = _Problems(self.source.name)
        num_lines = 0
        for place, line in self.source.lines():
            num_lines += 1
            with problems.of(place):
                check_line(line, self.given, self.has_text)
        problems.raise_if_any()
        self.num_lines = num_lines
        if not num_lines:
            raise ConfigError(f'{self.source.name} has no request; write lines like {{"prompt": "text"}}')

    def run(self, engine: Engine) -> None:
        """Check every line, then run those that are not done.

        Raises:
            ConfigError: Lines cannot be served.
            UsageError: The output holds results of other requests.
            KeyboardInterrupt: Ctrl-C; what had finished is in the output.
        """
        todo = self._check(engine)
        self.sink.begin()
        self.num_run = len(todo)
        done = len(self.sink.done)
        with tqdm(
            total=done + len(todo),
            initial=done,
            disable=not self.shows_progress,
            desc="generate",
            unit="prompt",
        ) as progress:
            self._serve(engine, iter(todo), progress.update)

    def _check(self, engine: Engine) -> list[tuple[Place, str]]:
        """Places and digests of the lines that are still to do."""
        problems, facts = _Problems(self.source.name), _facts(engine)
        todo: list[tuple[Place, str]] = []
        left = dict(self.sink.done)
        changed: list[int] = []
        for place, line in self.source.lines():
            with problems.of(place):
                ready = self._ready(engine, facts, place, line)
                known = left.pop(place.number, None)
                if known is None:
                    todo.append((place, ready.digest))
                elif known != ready.digest:
                    changed.append(place.number)
        problems.raise_if_any()
        if changed or left:
            line_number = min([*changed, *left])
            raise UsageError(
                f"--output: {self.sink.path} has a result for line {line_number} that was made from another "
                f"request, model or parameters than {self.source.name} asks for now; {START_ANEW}"
            )
        return todo

    def _prompt(self, engine: Engine, source: Mapping[str, Any]) -> Any:
        if "messages" not in source:
            return {key: source[key] for key in ("prompt", "prompt_token_ids") if key in source}
        if self._renderer is None:
            self._renderer = build_chat_renderer(engine)
        wanted = {key: source[key] for key in (*CHAT_KEYS, *CHAT_SWITCHES) if key in source}
        kwargs = source.get("chat_template_kwargs")
        return self._renderer.prompt(ChatRequest(**wanted, template_kwargs=kwargs))

    def _ready(self, engine: Engine, facts: Mapping[str, Any], place: Place, line: bytes) -> _Ready:
        request = parse_request(line)
        defaults = engine.sampling_defaults
        params = defaults.params(**{**with_whole_context(defaults), **self.given, **request.sampling})
        if "seed" not in request.sampling or params.seed is None:
            base = engine.loaded.config.model.seed if params.seed is None else params.seed
            params = evolve(params, seed=child_seed(base, place.number))
        handling = evolve(self.handling, **request.handling)
        checked = engine.check_request(self._prompt(engine, request.source), params, handling)
        # A chat template may write the date, so a conversation's ids are not the same tomorrow.
        ids = None if "messages" in request.source else checked.token_ids
        limit = engine.max_model_len if params.max_tokens is None else None
        text = json.dumps([facts, request.source, ids, asdict(params), limit], sort_keys=True)
        return _Ready(place, request, checked, hashlib.sha256(text.encode()).hexdigest())

    def _serve(
        self, engine: Engine, todo: Iterator[tuple[Place, str]], note: Callable[[int], object]
    ) -> None:
        window = WINDOW_PER_ROW * engine.loaded.config.scheduler.max_num_seqs
        facts = _facts(engine)
        running: dict[str, _Ready] = {}
        is_more = True
        while is_more or running:
            while is_more and len(running) < window:
                entry = next(todo, None)
                if entry is None:
                    is_more = False
                    break
                place, digest = entry
                ready = self._ready(engine, facts, place, self.source.line_at(place))
                if ready.digest != digest:
                    raise UsageError(f"{self.source.name}:{place.number} changed while it was read")
                ids, checked = list(ready.checked.token_ids), ready.checked
                request_id = engine.add_request(
                    {"prompt_token_ids": ids}, checked.params, handling=checked.handling
                )
                running[request_id] = ready
            # A step and the writing of what it finished belong together: Ctrl-C comes before or after.
            with interrupts_deferred():
                for output in engine.step(final_only=True) if running else ():
                    self._write(running.pop(output.request_id), output)
                    note(1)

    def _write(self, ready: _Ready, output: RequestOutput) -> None:
        record = {**ready.request.source, **output_as_json(output)}
        self.sink.append(ready.place.number, ready.digest, record)
        self.num_tokens += sum(len(sample.token_ids) for sample in output.outputs)


class _Problems:
    """Collects one sentence per wrong line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sentences: list[str] = []
        self.num = 0
        self._place = Place(0, 0)

    def of(self, place: Place) -> _Problems:
        """The context in which a line is judged."""
        self._place = place
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, LineError | RequestError):
            return False
        self.num += 1
        if self.num <= MAX_PROBLEMS:
            # A line's keys stand at its top, so they are named without a path.
            sentence = str(error).replace("$.policy_args", "policy_args")
            self.sentences.append(f"{self.name}:{self._place.number}: {sentence}")
        return True

    def raise_if_any(self) -> None:
        """Raise one ConfigError with every sentence, if there are any."""
        if self.num > MAX_PROBLEMS:
            more = self.num - MAX_PROBLEMS
            self.sentences.append(f"{self.name}: {more} more lines are wrong")
        if self.sentences:
            raise ConfigError(*self.sentences)


def _facts(engine: Engine) -> dict[str, Any]:
    """What a result depends on beside the request."""
    model, frontend = engine.loaded.config.model, engine.loaded.config.frontend
    return {
        "model": model.model,
        "revision": model.revision,
        "load_format": model.load_format,
        "dtype": model.dtype,
        "eos": engine.eos_token_ids,
        "tokenizer": frontend.tokenizer,
        "chat_template": frontend.chat_template,
        "default_chat_template_kwargs": frontend.default_chat_template_kwargs,
    }


def run_batch(
    source_path: str,
    sink_path: str,
    given: Mapping[str, Any],
    handling: Handling,
    *,
    overwrite: bool,
    shows_progress: bool,
    has_text: bool,
    load: Callable[[], Engine],
    report: Callable[[Engine, int, float], None],
) -> int:
    """Run a file of requests.

    Args:
        given: Sampling parameters of the flags.
        handling: Of the flags; a line's own wins.
        has_text: Whether the engine will have a tokenizer.
        load: Makes the engine, once all that can be checked without one has been.
        report: Told at the end of the engine, the tokens that it made and the seconds it took.

    Returns:
        0, or 130 when interrupted, 143 by SIGTERM.

    Raises:
        VtcoreError: Something is wrong with a file, a line, an option or the model.
    """
    with (
        closing(BatchInput(source_path)) as source,
        closing(BatchOutput(sink_path, source.file, overwrite)) as sink,
    ):
        batch = Batch(source, sink, given, handling, shows_progress, has_text)
        try:
            batch.check_form()
            if sink.torn_bytes:
                say(f"{sink.path}: a line that was broken off is left out")
            # The sink has a descriptor of its own.
            with others_print_to_stderr():
                engine = load()
                try:
                    start = time.monotonic()
                    batch.run(engine)
                    if batch.num_run:
                        report(engine, batch.num_tokens, time.monotonic() - start)
                finally:
                    engine.close()
            if (why := sink.sort()) is not None:
                say(f"{sink.path}: {why}")
        except KeyboardInterrupt:
            say(f"interrupted: {_kept(batch, sink)}")
            return interrupted_code()
        idle = "" if batch.num_run else "; nothing was left to do"
        say(f"{len(sink.done)} of {batch.num_lines} are done, in {sink.path}{idle}")
    return 0


def _kept(batch: Batch, sink: BatchOutput) -> str:
    total = "" if batch.num_lines is None else f" of {batch.num_lines}"
    if not sink.done:
        return f"none{total} is done" if total else "nothing is done"
    resumes = "; the same command goes on from there" if sink.is_resumable else ""
    return f"{len(sink.done)}{total} are done and kept in {sink.path}{resumes}"
