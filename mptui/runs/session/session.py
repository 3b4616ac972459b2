"""Rank 0: thread, events, end."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mptui.config.meant import meanings
from mptui.config.resolve import resolve, to_toml, values_of
from mptui.config.schema import RunConfig
from mptui.engine.checkpoint.saver import Saver
from mptui.engine.mailbox import Command, RunAbandoned, Stopped
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.engine.reporting.observers import observers
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError, DiskError, MptuiError, RunDirectoryError, cleaned_up_by
from mptui.events import (
    CommandAnswered,
    DeviceSample,
    Diagnosed,
    Event,
    PhaseChanged,
    Suspended,
    Warned,
)
from mptui.hardware.advice import choose_precision
from mptui.hardware.sampler import DeviceSampler
from mptui.io.files import Guard
from mptui.processes.rank_place import is_restart
from mptui.runs.planning.auto import Decider
from mptui.runs.planning.build import PreparedRun, run_started
from mptui.runs.planning.plan import Plan, workers_under
from mptui.runs.remote.control import ControlServer, preset_names
from mptui.runs.remote.feed import OwnFeed
from mptui.runs.session.ending import (
    RunResult,
    cause_of,
    check_space,
    ending_events,
    exit_code,
    former_end,
    last_event,
    note_figures,
    result_of_loss,
    status_of_error,
    waiting_for_disk,
    with_lever,
    write_divergence,
    write_files,
)
from mptui.runs.session.member import (
    Beginning,
    RankTraining,
    check_length,
    for_other_ranks,
    has_checkpoint,
    leave,
    restore_run,
    settings_before,
)
from mptui.runs.session.shutdown import WORKER
from mptui.runs.session.watchdog import Absence, RankReports, RunClock, Watchdog, pulse
from mptui.runs.store import directory
from mptui.runs.store.directory import CHANGES, CONFIG, VERSION, Ownership, read_json, write_json, write_text
from mptui.runs.store.files import (
    Records,
    kept_reading,
    learned_before,
    note_data,
    paused_before,
    redact,
    seconds_before,
    write_environment,
)
from mptui.runs.trackers.feeder import RunTrackers
from mptui.runs.view.specs import EVENTS
from mptui.text import clean, shell_word

# A session hosts one run: the training thread, listeners for its events, and commands
# ------------------------------------------------------------------------------------
# The training thread and the rest of the process share only a mailbox of commands and a feed of events per
# listener. Closing a screen doesn't end the thread.


class Session(RankTraining):
    """One run in this process.

    Args:
        plan: The plan of the run.
        run: The run directory, from `directory.create_run`.
        resume: Resume from the run's newest checkpoint.
        force_compile: Compile even if the run is too short to repay it.
        ranks: The processes that train together, of which this is the first.
        begun_s: Seconds since this process began with the run, as to import torch takes some.
    """

    measures_costs = True
    """Whether to measure the cost of a slow requested precision, to warn about it."""

    def __init__(
        self,
        plan: Plan,
        run: Path,
        *,
        resume: bool = False,
        force_compile: bool = False,
        ranks: Ranks = ALONE,
        begun_s: float = 0.0,
    ) -> None:
        self._changes = LiveChanges(run, plan)
        plan = named_as_before(plan, run) if resume else plan
        super().__init__(self._changes.onto(plan), ranks, force_compile=force_compile)
        self.run = run
        self._resume = resume
        self._listeners: list[OwnFeed] = []
        self._lock = threading.Lock()
        self._step = 0
        self._phase = ""
        self._absence = Absence()
        self._clock = RunClock(begun_s)
        self._result: RunResult | None = None
        self._thread = threading.Thread(target=self._work, name=WORKER, daemon=True)
        self._ended = threading.Event()
        self.trackers = RunTrackers(run, self._warn)
        self._rank_reports = RankReports(ranks, self._emit)
        self._left = False
        self._control = ControlServer(
            run,
            presets=preset_names(plan.request.environ),
            profile=lambda: self.plan.resolved.profile,
            given=lambda: self.plan.resolved.given,
            on_command=self.send,
        )

    # -- interface of screens and consoles

    def listen(self) -> OwnFeed:
        """Return a feed of all events from now on; there can be several."""
        feed = OwnFeed(self.run)
        self._listeners.append(feed)
        return feed

    def start(self) -> None:
        """Start the session's thread.

        Raises:
            ConfigError: A requested setting can't apply to the resumed run.
            RunDirectoryError: Another process trains this run.
            DiskError: The run's directory can't be written.
        """
        self._before = settings_before(self.run, self.plan.config) if self._resume else None
        self._former = former_end(self.run) if self._resume else None
        self._ownership = Ownership(self.run, self._give_up)
        self._started = time.monotonic()
        try:
            self._records = Records(self.run, self._ownership.change, is_owner=lambda: not self._taken_over())
            self._ownership.untouched = self._records.untouched
        except DiskError:
            self._ownership.release()
            raise
        for feed in self._listeners:  # a torn line is cut from the journal as it is opened
            feed.position = self._records.reach[0]
        self._watchdog = Watchdog(self.run, lambda: 60 * self.plan.config.guards.hang_minutes, self._warn)
        try:
            self._control.open()
        except OSError as error:
            self._warn("control", f"no control socket: others can only watch and send signals: {error}")
        self._thread.start()

    def send(self, command: str, argument: str | None = None, id: str = "", by: str = "script") -> None:
        """Send a command, which is handled between two steps; `id` and `by` come back with its answers."""
        asked = CommandAnswered(
            step=self._step, command=command, state="asked", detail=argument or "", id=id, by=by
        )
        self._emit(asked)
        self.mailbox.post(Command(command, argument, id, by))

    @property
    def finished(self) -> bool:
        """Whether the run has ended and everything is written."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the end of the run; return whether it has ended."""
        return self._ended.wait(timeout)

    @property
    def result(self) -> RunResult:
        """The result of the run, once it has ended."""
        if self._result is None:
            raise RuntimeError("the run has not ended")
        return self._result

    @property
    def steps(self) -> int:
        """Optimizer steps that the run has taken."""
        return self._step if self._trainer is None else self._trainer.state.step

    # -- the training thread

    def _work(self) -> None:
        with contextlib.suppress(RunAbandoned):  # the run has ended without this thread
            self._work_to_the_end()

    def _work_to_the_end(self) -> None:
        status, code, cause = "completed", 0, None
        try:
            self._train()
        except Stopped as stop:
            status, code = "stopped", exit_code(stop.signal)
            if stop.signal is not None:
                self._emit(CommandAnswered(step=self._step, command="stop", state="done", by="signal"))
        except RunAbandoned:
            raise
        except BaseException as caught:  # noqa: BLE001 - a bug: recorded, and raised again by the owner
            cause = cause_of(caught, self._ranks, self.plan.config.model, self._trainer)
            status, code = status_of_error(cause), cause.exit_code if isinstance(cause, MptuiError) else 1
        self.mailbox.early_exit.close()
        self._ranks.end_beats()
        self._end(status, code, cause, leave=partial(leave, self._ranks, cause))

    def _end_without_worker(self) -> None:
        """End a run that is asked to stop while it compiles, after saving its state."""
        with self._lock:
            self._left = True
        try:
            if self._trainer is not None:
                note_figures(self._records, self._trainer)
        finally:
            self._end("stopped", exit_code(self.mailbox.stop_signal), None)

    def _train(self) -> None:
        plan = self.plan
        goes_on = self._resume and has_checkpoint(self.run, self._ownership.change)
        learned = learned_before(self.run) if goes_on else None
        read_before = kept_reading(self.run, self._before, plan.config) if goes_on else None
        begun = Beginning(for_other_ranks(plan), self.run, self._resume, goes_on, learned, read_before)
        self._ranks.broadcast(begun)
        guard = self._changes.guard = self._ownership.change
        self._changes.begin()
        if not goes_on:  # a resume saves its settings once they are in force
            self._changes.take(plan)
            write_environment(self.run, plan.device, plan.driver, guard)
        if self._resume:  # also after a process that saved nothing: `training.time` is that of all
            before = directory.read_summary(self.run)
            spent = seconds_before(self.run, before)
            self._clock.before = max(0.0, spent - paused_before(self.run))
            if goes_on:
                if words := left_open(self._before, plan, self.run):
                    self._warn("left_open", words)
                self._records.summary.go_on_from(before, spent)
        self._records.write_summary()
        self._emit(PhaseChanged(phase="starting"))
        self.trackers.start(plan.config)
        sampler = DeviceSampler(plan.device.torch_name, uuid=plan.device.uuid)
        with pulse(sampler, self._beat, self._absence):
            check_stop, costs = self._agreed.check_stop, self.measures_costs
            decider = Decider(self.run, goes_on, self._emit, check_stop, guard, measure_costs=costs)
            self._train_from(
                begun, decider.decide, on_bad=lambda problem: self._records.bad_samples.add([problem])
            )

    def _note_prepared(self, prepared: PreparedRun) -> None:
        if self.plan.precision.warning is not None:  # includes the factor if it was measured
            self._warn("precision", self.plan.precision.warning)
        self._records.bad_samples.note(prepared.dataset.problems, self._warn)

    def _outputs(self) -> dict[str, Any]:
        on_images = partial(self._records.write_images, keep=self.plan.config.sampling.keep)
        records = self._records
        looking_on = observers(
            on_images=on_images, on_pictures=records.write_pictures, on_data=records.write_data_pictures
        )
        return {"on_best": records.write_best, "seconds": self._clock.seconds, "observers": looking_on}

    def _restore(self, trainer: Trainer, prepared: PreparedRun, begun: Beginning) -> int | None:
        self._watchdog.follow(trainer.context)
        resumed, guard = None, self._ownership.change
        if begun.resume:
            resumed = restore_run(trainer, self.run, self._before, self._warn, guard=guard)
        if resumed is None or check_length(trainer, self._before, begun.plan.config, self._warn):
            self._changes.take(self.plan)
        self._check_space(prepared)
        return resumed

    def _train_on(
        self, trainer: Trainer, prepared: PreparedRun, begun: Beginning, resumed: int | None
    ) -> None:
        note_data(self.run, prepared.dataset, self._warn)
        if begun.goes_on:
            write_environment(self.run, begun.plan.device, begun.plan.driver, self._ownership.change)
        self._former = None  # this process makes the result now
        self._emit(run_started(self.plan, self.run, prepared, trainer, resumed_from=resumed))
        if self._changes.paused:
            self.mailbox.post(Command("pause", by="restart"))
        with cleaned_up_by(partial(note_figures, self._records, trainer)):
            super()._train_on(trainer, prepared, begun, resumed)

    def _check_space(self, prepared: PreparedRun) -> None:
        check_space(self.run / directory.CHECKPOINTS, prepared.job)

    def _saver(self, run: Path) -> Saver:
        return Saver(
            run / directory.CHECKPOINTS,
            lambda: self.plan.config.checkpoint,
            self._emit,
            hold=self._held,
            should_stop=lambda: self.mailbox.stop_requested,
            may_wait=lambda: not self.mailbox.insisted,
            guard=self._ownership.change,
        )

    def _held(self, error: DiskError) -> contextlib.AbstractContextManager[None]:
        return waiting_for_disk(error, self._emit, self._warn, step=self._step, phase=self._phase)

    def _accept(self, plan: Plan) -> None:
        self._changes.switch(plan)
        super()._accept(plan)

    def _end(
        self, status: str, code: int, cause: BaseException | None, leave: Callable[[], None] = lambda: None
    ) -> None:
        """Write the result, leave the group, release the run and wake waiting threads, even if one fails."""
        error, bug = (cause, None) if isinstance(cause, MptuiError) else (None, cause)
        classes = None if self._trainer is None else self._trainer.context.job.num_classes
        error = with_lever(error, self.plan, classes)
        result = RunResult(status, code, self._records.summary.document, error, bug)
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self.trackers.finish)  # once all of the run is written
                stack.callback(self._ownership.release)
                stack.callback(self._records.close)
                # without the session's lock, for which its thread may wait in a command
                stack.callback(lambda: self._control.close(remove=not self._taken_over()))
                stack.callback(leave)
                self._records.look_after_journal(self._emit, self._step)
                self._write_files(result)
                if (lost := self._taken_over()) is not None:
                    result = result_of_loss(lost, result.summary)
                    self._write_files(result)
                self._write_end(result)
        except Exception as caught:  # noqa: BLE001 - a bug: raised again by the waiting thread
            if result.error is None and result.bug is None:
                result = replace(result, status="failed", exit_code=1, bug=caught)
        finally:
            self._result = result
            self._ended.set()

    def _write_files(self, result: RunResult) -> None:
        with self._lock:
            self._left = True  # drop later events of other threads
            write_files(
                self.run,
                self._records,
                self._ownership,
                result,
                former=self._former,
                is_random=self.plan.config.model.weights is None,
            )

    def _write_end(self, result: RunResult) -> None:
        seconds = time.monotonic() - self._started
        before = self._records.summary.seconds_before
        finished = last_event(self.run, result, step=self._step, seconds=(seconds, before + seconds))
        with self._lock:
            if not self._taken_over():
                self._records.bad_samples.write()
                if result.is_final():
                    for event in ending_events(self.run, finished, self._former):
                        self._records.handle(event)
            self._pass_on(finished, to_others=result.is_final())

    # -- events

    def _emit(self, event: Event) -> None:
        """Write an event to the journal, then send it to listeners. Thread-safe."""
        if self._taken_over():
            return
        with self._lock:
            if self._left:
                return
            self._note_absence()
            self._write(event)
        match event:
            case CommandAnswered(command="pause", state=state) if state != "asked":
                self._changes.pause(state == "taken" or self.mailbox.stop_requested)
            case Diagnosed(problem="divergence") if not self._taken_over():
                write_divergence(self.run, event, self._ownership)

    def _note_absence(self) -> None:
        """Tell of time in which this process did not run, before anything else is told."""
        if seconds := self._absence.take():
            self._write(Suspended(step=self._step, seconds=round(seconds, 3)))

    def _write(self, event: Event) -> None:
        """Write an event and send it on, under the session's lock: in the journal's order."""
        event = replace(event, clock=time.monotonic())
        if EVENTS[event.kind].moves_step and event.step:  # back, too: after an undo or a rollback
            self._step = event.step
        self._phase = event.phase if isinstance(event, PhaseChanged) else self._phase
        self._records.handle(event)
        self._watchdog.handle(event)
        self._clock.handle(event)
        self._pass_on(event)

    def _pass_on(self, event: Event, *, to_others: bool = True) -> None:
        """Tell the listeners of an event that the journal was given, and other processes to read it there."""
        position, written = self._records.reach
        for feed in self._listeners:
            feed.handle(event, position, written)
        if to_others:
            self._control.handle(event, written=position == written)

    def _warn(self, code: str, message: str) -> None:
        self._emit(Warned(step=self._step, code=code, message=clean(redact(message))))

    def _beat(self, sample: DeviceSample | None) -> bool:
        """Emit the sample, write due files, end a run that missed a stop; return whether it continues."""
        taken_over = self._taken_over()
        if not taken_over:
            with self._lock:
                if not self._left:
                    self._note_absence()
        self._absence.stop()
        if sample is not None:
            self._emit(replace(sample, step=self._step))
        self._rank_reports.beat(sample, self._step, self.plan.config)
        self.trackers.beat()
        if self.mailbox.stop_requested and self.mailbox.early_exit.take():
            self._end_without_worker()
            return False
        if taken_over:
            return True
        self._records.beat(self._emit, self._step)
        trainer = self._trainer
        self._watchdog.check(trainer and (trainer.state.step, trainer.state.cursor.sample))
        return True

    def _taken_over(self) -> RunDirectoryError | None:
        """Return the error if another process has taken the run over, which stops it; else None."""
        return self._ownership.lost()

    def _give_up(self) -> None:
        self.trackers.kill()
        self._records.give_up()
        self.mailbox.stop(None)


# What people have changed in a run since its command was given: switched settings, and a pause
# ---------------------------------------------------------------------------------------------
# A launcher starts a run again by the same command, after the loss of a process or the preemption of its
# job. Then the changes count, and not the flags.


def named_as_before(plan: Plan, run: Path) -> Plan:
    """Return the plan of a resume by the settings of the run, named as the profile that it has them from."""
    if plan.request.profile is None or Path(plan.request.profile).resolve() != (run / CONFIG).resolve():
        return plan
    summary, resolved = directory.read_summary(run), plan.resolved
    changed = [key for key in resolved.sources if key in summary.get("changed", ())]
    if given := resolved.given:
        with contextlib.suppress(ConfigError):
            had = values_of(resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config)
            now = values_of(resolved.config)
            changed += [key for key in given if had[key] != now[key] and key not in changed]
    profile = summary.get("profile") or resolved.profile
    return replace(plan, resolved=replace(resolved, profile=profile, changed=tuple(changed)))


def left_open(before: RunConfig | None, plan: Plan, run: Path) -> str:
    """Say what the command that a run is resumed by leaves to defaults and choices that are other ones now.

    Args:
        before: The settings that the run had; None: they can't be read.
        plan: The plan by the command. That of `mptui resume` leaves nothing open.
        run: The run directory.

    Returns:
        A line; "" if there is nothing.
    """
    if before is None:
        return ""
    had, now = values_of(before), values_of(plan.config)
    words = [
        f"{key} = {now[key]} ({source}; it had {had[key]})"
        for key, source in plan.resolved.sources.items()
        if source.startswith(("default", "chosen")) and had[key] != now[key]
    ]
    if not words:
        return ""
    return (
        f"the run goes on with other settings than it had, left open by this command: {'; '.join(words)}. "
        f"mptui resume {shell_word(run.name)} keeps what it had"
    )


class LiveChanges:
    """The settings in force of a run, `run.toml`, and what a restart has to know of them.

    Args:
        run: The run directory.
        plan: The plan by the command line.

    Attributes:
        guard: Context around each change of a name in the run directory.
    """

    def __init__(self, run: Path, plan: Plan) -> None:
        self._run = run
        self.guard: Guard = contextlib.nullcontext
        again = is_restart(plan.request.environ)
        self._found: dict[str, Any] = read_json(run / CHANGES) if again else {}

    @property
    def paused(self) -> bool:
        """Whether the run was paused when it ended, and is to be paused again."""
        return self._found.get("paused") is True

    def onto(self, plan: Plan) -> Plan:
        """Return the plan with the settings that were in force, if the command has begun the run before."""
        try:
            asked = self._found["asked"]
            config = resolve(str(self._run / CONFIG), task=None, flags={}, sets=(), environ={}).config
            request = replace(plan.request, profile=asked["profile"], sets=tuple(asked["sets"]))
        except (KeyError, TypeError, ConfigError):
            return plan
        profile, changed = str(self._found["profile"]), tuple(map(str, self._found.get("changed", ())))
        resolved = replace(plan.resolved, config=config, profile=profile, changed=changed)
        precision = plan.precision
        if config.precision.mode != precision.requested:
            precision = choose_precision(config.precision.mode, plan.device)
        workers = workers_under(config, plan)
        return replace(plan, request=request, resolved=resolved, precision=precision, workers=workers)

    def begin(self) -> None:
        """Forget the changes in a run that somebody has started or resumed.

        Raises:
            DiskError: The run directory can't be written.
        """
        if not self._found and (self._run / CHANGES).exists():
            self._write()

    def take(self, plan: Plan) -> None:
        """Write the settings in force as the run begins.

        Raises:
            DiskError: The run directory can't be written.
        """
        write_text(self._run / CONFIG, to_toml(plan.config, meanings(plan.config, plan.task)), self.guard)

    def switch(self, plan: Plan) -> None:
        """Write the settings in force after a switch.

        Raises:
            DiskError: The run directory can't be written.
        """
        asked = {"profile": plan.request.profile, "sets": list(plan.request.sets)}
        named = {"profile": plan.resolved.profile, "changed": list(plan.resolved.changed)}
        self._found |= {**named, "asked": asked}
        self._write()
        self.take(plan)

    def pause(self, paused: bool) -> None:
        """Note that the run is paused, or goes on; a disk that can't be written forgets it."""
        if paused != self.paused:
            self._found["paused"] = paused
            with contextlib.suppress(DiskError, RunDirectoryError):
                self._write()

    def _write(self) -> None:
        write_json(self._run / CHANGES, {"version": VERSION, **self._found}, self.guard)
