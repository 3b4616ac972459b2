"""A schedule-free run is validated and saved with its averaged weights and statistics that belong to them."""

import pytest
import torch

from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import Command
from mptui.engine.optim.averages import ScheduleFree
from mptui.events import Step, Validated
from tests.engine.small import build_trainer, config, losses, of, small_net

TRAINING = {"optimizer": "sgd_schedule_free", "lr": 0.1, "schedule": "constant", "momentum": 0.8}


def run(folder, then=None, epochs=2, norm=True, **training):
    trainer, events = build_trainer(
        config(training={**TRAINING, "epochs": epochs, **training}), folder, model=small_net(norm=norm)
    )
    events.then = None if then is None else lambda event: then(trainer, event)
    trainer.train()
    trainer.context.saver.close()
    return trainer, events


def test_the_checkpoint_has_the_average_and_the_statistics_of_the_average(tmp_path):
    trainer, _ = run(tmp_path)
    saved = read_newest(tmp_path)[0].tensors
    optimizer = trainer.context.parts.optimizer
    assert isinstance(optimizer, ScheduleFree)
    trained = dict(trainer.context.model.named_parameters())
    for name, x in saved["average"].items():
        y, z = trained[name].detach(), saved["optimizer"][f"z/{name}"]
        torch.testing.assert_close(y, 0.2 * z + 0.8 * x)
        assert torch.equal(saved["model"][name], y)
    network = small_net()
    network.load_state_dict({**saved["model"], **saved["average"]})
    means = []
    network.get_submodule("0").register_forward_hook(
        lambda _, inputs, out: means.append(out.mean(dim=(0, 2, 3)))
    )
    for window in trainer.context.job.train_loader.windows(1, 1):
        for batch in window:
            network(*batch.inputs)
    torch.testing.assert_close(saved["model"]["1.running_mean"], torch.stack(means).mean(0))
    trainer.close()


def test_a_validation_amid_an_epoch_changes_no_step(tmp_path):
    def ask(trainer, event):
        if isinstance(event, Step) and event.step == 2:
            trainer.context.mailbox.post(Command("validate"))

    trainer, events = run(tmp_path / "asked", ask, epochs=1)
    plain, undisturbed = run(tmp_path / "plain", epochs=1)
    assert len(of(events, Validated)) == len(of(undisturbed, Validated)) + 1
    assert losses(events) == losses(undisturbed)
    for key, tensor in plain.context.model.state_dict().items():
        assert torch.equal(tensor, trainer.context.model.state_dict()[key])
    trainer.close()
    plain.close()


@pytest.mark.parametrize("norm", [True, False])
def test_the_validation_is_that_of_the_saved_average(tmp_path, norm):
    trainer, events = run(tmp_path, norm=norm, epochs=1)
    saved = read_newest(tmp_path)[0].tensors
    network = small_net(norm=norm).eval()
    network.load_state_dict({**saved["model"], **saved["average"]})
    wrong = small_net(norm=norm).eval()
    wrong.load_state_dict(saved["model"])
    found = {}
    for name, each in {"average": network, "trained": wrong}.items():
        total, count = 0.0, 0
        for window in trainer.context.job.val_loader.windows(0, 1):
            for batch in window:
                logits = each(batch.images_BCHW[: batch.size]).detach()
                total += float(
                    torch.nn.functional.cross_entropy(logits, batch.targets[: batch.size], reduction="sum")
                )
                count += batch.size
        found[name] = total / count
    (validated,) = of(events, Validated)
    assert validated.loss == pytest.approx(found["average"], rel=1e-5)
    assert validated.loss != pytest.approx(found["trained"], rel=1e-3)
    trainer.close()
