"""Defaults chosen by the plan: the network from the data, its size from the device."""

import os
import shutil
from dataclasses import replace

import pytest

from mptui.config.resolve import resolve
from mptui.engine.optim.schedule import scaled_lr
from mptui.errors import ConfigError
from mptui.hardware.devices import Device, Machine
from mptui.hardware.nvml import GpuInfo
from mptui.runs.planning.plan import Request, filled, plan_run, rate_notes
from tests.data.images import class_folders, pairs, stripes
from tests.data.prepared_sets import prepared
from tests.hardware.machines import HOST, card, cpu

LONG = "training.epochs=1000"
"""A run long enough to learn a few images by heart."""


def device(kind):
    return Device(kind=kind, index=0, name="one", architecture=None, memory_total=None, native={})


def chosen(kind, *sets, model="diffusion_unet"):
    flags = {"model.name": ("--model", model)}
    return filled(resolve(None, task=None, flags=flags, sets=sets, environ={}), device(kind))[0]


@pytest.mark.parametrize(("kind", "width", "side"), [("cpu", 32, 32), ("cuda", 128, 64)])
def test_a_diffusion_unet_is_as_wide_as_the_device_can_train(kind, width, side):
    config = chosen(kind).config
    assert (config.model.width, config.model.depth, config.data.image_size) == (width, 3, side)


def test_a_width_and_a_depth_that_were_asked_for_stay():
    resolved = chosen("cuda", "model.width=64", "model.depth=2")
    assert (resolved.config.model.width, resolved.config.model.depth) == (64, 2)
    assert resolved.sources["model.width"] == "--set"


def test_rates_that_differ_by_layer_are_told():
    training = chosen(
        "cpu", "training.layer_decay=0.75", "training.head_lr_scale=10", model="resnet18"
    ).config.training
    told = [note for note in rate_notes(training) if "by layer" in note]
    assert told == [
        "Learning rate by layer: x 0.75 from each layer to the one before it (training.layer_decay), "
        "x 10 for the head (training.head_lr_scale)"
    ]
    assert not rate_notes(chosen("cpu", model="resnet18").config.training)


def test_the_sizes_of_the_other_networks_do_not_change():
    unet = chosen("cuda", model="unet").config
    assert (unet.model.width, unet.model.depth, unet.data.image_size) == (64, 4, 512)


def test_diffusion_has_defaults_that_it_learns_with_and_anything_given_wins():
    resolved = chosen("cpu")
    training = resolved.config.training
    assert (training.optimizer, training.lr, training.ema_decay) == ("adamw", 5e-4, 0.999)
    assert resolved.sources["training.lr"] == "default [diffusion.training]"
    assert chosen("cpu", "training.optimizer=sgd").config.training.optimizer == "sgd"
    of_classes = chosen("cpu", model="resnet18")
    assert of_classes.sources["training.lr"] == "default [classification.training]"


def test_images_alone_are_learnt_by_a_diffusion_unet(tmp_path):
    class_folders(tmp_path, {".": 4})
    plan = planned_on(tmp_path)
    assert (plan.task, plan.config.model.name) == ("diffusion", "diffusion_unet")


@pytest.mark.parametrize(("stored", "side"), [((28, 28), 32), ((40, 33), 64), ((90, 64), 64)])
def test_small_images_are_neither_enlarged_nor_cut_to_a_part_of_what_they_show(tmp_path, stored, side):
    class_folders(tmp_path, {"train/a": 2, "train/b": 2, "val/a": 1, "val/b": 1}, size=stored)
    resolved = planned_on(tmp_path, LONG).resolved
    data, source = resolved.config.data, resolved.sources["data.image_size"]
    assert (data.image_size, data.crop_scale) == (side, [0.6, 1.0])
    assert source == f"chosen: images of {min(stored)} px" == resolved.sources["data.crop_scale"]


def test_of_images_with_one_that_is_larger_the_device_decides_about_the_size(tmp_path):
    class_folders(tmp_path, {"a": 2, "b": 2}, size=(28, 28))
    class_folders(tmp_path / "c", {".": 1}, size=(65, 65))
    assert planned_on(tmp_path).resolved.sources["data.image_size"] == "chosen: no GPU"


@pytest.mark.parametrize(("model", "side"), [("alexnet", 64), ("vit_b_16", 32), ("inception_v3", 96)])
def test_small_images_are_as_large_as_the_network_needs(tmp_path, model, side):
    class_folders(tmp_path, {"a": 2, "b": 2}, size=(28, 28))
    assert planned_on(tmp_path, f"model.name={model}").config.data.image_size == side


SHORT, SAME = ["flip", "colour"], "default"


@pytest.mark.parametrize("is_masks", [False, True])
@pytest.mark.parametrize(
    ("given", "augment"),
    [
        ("training.epochs=320", SHORT),
        ("training.epochs=321", SAME),
        ("training.time=1h", SAME),
        ("data.crop_scale=[0.5, 0.9]", SAME),
        ("data.crop_ratio=[1.0, 1.0]", SAME),
        ("data.augment=none", "none"),
    ],
)
def test_a_run_too_short_to_learn_few_images_by_heart_crops_none(tmp_path, is_masks, given, augment):
    if is_masks:
        pairs(tmp_path, [stripes(0, 255)] * 5)
    else:
        class_folders(tmp_path, {"train/a": 2, "train/b": 2, "val/a": 1, "val/b": 1}, size=(28, 28))
    resolved = planned_on(tmp_path, given).resolved
    assert resolved.config.data.augment == augment
    if augment == SHORT:
        assert resolved.sources["data.augment"] == "chosen: 320 steps"


def test_a_long_run_and_large_photos_are_cropped(tmp_path):
    class_folders(tmp_path, {"a": 800, "b": 800}, size=(28, 28))
    assert planned_on(tmp_path, "training.epochs=16").config.data.augment == SHORT
    assert planned_on(tmp_path, "training.epochs=17").config.data.augment == SAME
    class_folders(tmp_path / "large", {"a": 2, "b": 2}, size=(90, 90))
    assert planned_on(tmp_path / "large").config.data.augment == SAME


@pytest.mark.parametrize("given", ["data.image_size=48", "data.crop_scale=[0.5, 0.9]"])
def test_what_is_set_for_small_images_stays(tmp_path, given):
    class_folders(tmp_path, {"a": 2, "b": 2}, size=(28, 28))
    data, key = planned_on(tmp_path, given, LONG).config.data, given.partition("=")[0].partition(".")[2]
    wanted = {"image_size": 48, "crop_scale": [0.5, 0.9]}
    assert getattr(data, key) == wanted[key]
    other = "crop_scale" if key == "image_size" else "image_size"
    assert getattr(data, other) == {"image_size": 32, "crop_scale": [0.6, 1.0]}[other]


def test_segmentation_has_defaults_that_take_enough_steps_on_few_images():
    resolved = chosen("cpu", model="unet")
    training = resolved.config.training
    assert (training.batch_size, training.optimizer, training.lr) == (8, "adamw", 1e-3)
    assert resolved.sources["training.batch_size"] == "default [segmentation.training]"


@pytest.mark.parametrize(
    ("sets", "rate"),
    [
        (["model.width=16"], 4e-3),
        (["model.width=32"], 2e-3),
        (["model.width=4"], 4e-3),
        (["model.width=128"], 1e-3),
        (["model.width=16", "training.lr=5e-4"], 5e-4),
        (["model.width=16", "training.optimizer=adam"], 1e-3),
        (["model.width=16", "model.encoder=resnet18"], 1e-3),
    ],
)
def test_a_narrow_unet_learns_at_a_rate_for_its_width_unless_one_is_set(sets, rate):
    for profile in (None, "fast"):
        flags = {"model.name": ("--model", "unet")}
        resolved = filled(resolve(profile, task=None, flags=flags, sets=sets, environ={}), device("cpu"))[0]
        assert resolved.config.training.lr == pytest.approx(rate)
        source = resolved.sources["training.lr"]
        assert (source == "chosen: a U-Net of width 16") == (rate == 4e-3 and "model.width=16" in sets)


def named_images(folder, folders):
    """Make files by number in folders, of which a plan counts the names: all are one image."""
    class_folders(folder / "one", {"a": 1}, size=(8, 8))
    (image,) = (folder / "one" / "a").iterdir()
    for name, count in folders.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            os.link(image, folder / name / f"{number}{image.suffix}")
    shutil.rmtree(folder / "one")


def batch_of(plan):
    return plan.config.training.batch_size, scaled_lr(plan.config.training)


@pytest.mark.parametrize(
    ("folders", "sets", "expected"),
    [
        ({"train/a": 100, "train/b": 96, "val/a": 2, "val/b": 2}, (), (16, 1e-3 / 2)),
        ({"a": 120, "b": 125}, (), (16, 1e-3 / 2)),  # a fifth is held out
        ({"a": 6, "b": 6}, (), (8, 1e-3 / 8**0.5)),
        ({"a": 400, "b": 400}, (), (32, 1e-3 / 2**0.5)),
        ({"a": 640, "b": 640}, (), (64, 1e-3)),
        ({"a": 120, "b": 125}, ("training.batch_size=4",), (4, 1e-3 / 4)),
        ({"a": 120, "b": 125}, ("training.lr=0.05",), (64, 0.05)),  # the batch that it is meant for
        ({"a": 120, "b": 125}, ("training.optimizer=sgd",), (16, 0.025)),
        ({"a": 120, "b": 125}, ("model.name=convnext_tiny",), (16, 1e-3 / 2)),
    ],
)
def test_few_images_get_a_batch_of_which_an_epoch_has_steps_and_its_rate(tmp_path, folders, sets, expected):
    named_images(tmp_path, folders)
    plan = planned_on(tmp_path, *sets)
    assert batch_of(plan) == pytest.approx(expected)
    is_chosen = plan.resolved.sources["training.batch_size"].startswith("chosen: ")
    assert is_chosen == (expected[0] not in {4, 64})


def test_the_built_in_images_are_learnt_in_few_steps():
    plan = plan_run(Request(flags={"hardware.device": ("--device", "cpu")}))
    assert plan.config.data.samples == 128
    assert batch_of(plan) == pytest.approx((64, 1e-3))


def test_a_set_has_the_batch_of_the_files_that_it_was_prepared_from(tmp_path):
    class_folders(tmp_path / "files", {"a": 500, "b": 138}, size=(8, 8))
    prepared(tmp_path / "files", tmp_path / "set")
    for name in ("files", "set"):
        assert batch_of(planned_on(tmp_path / name)) == pytest.approx((32, 1e-3 / 2**0.5))


@pytest.mark.parametrize(
    ("profile", "count", "sets", "is_told"),
    [
        ("production", 40, (), True),
        ("max-batch", 40, (), True),
        ("aggressive", 40, (), True),
        ("aggressive", 40, ("training.optimizer=adamw",), False),
        ("aggressive", 5200, (), False),
        ("fast", 40, (), False),
        (None, 40, (), False),
    ],
)
def test_a_profile_for_large_sets_tells_which_one_suits_few_images(tmp_path, profile, count, sets, is_told):
    named_images(tmp_path, {"train/a": count - 2, "train/b": 2, "val/a": 1, "val/b": 1})
    flags = {"data.path": ("--data", str(tmp_path)), "hardware.device": ("--device", "cpu")}
    notes = plan_run(Request(profile, flags, sets, {})).notes
    told = [note for note in notes if note.startswith(f"{profile} is for large sets: sgd at")]
    assert [note.rpartition("; ")[2] for note in told] == (
        [f"{count:,} training images are learnt better by --profile fast"] if is_told else []
    )


def planned_on(folder, *sets):
    flags = {"data.path": ("--data", str(folder)), "hardware.device": ("--device", "cpu")}
    return plan_run(Request(None, flags, sets, {}))


def two_gpus(*loads):
    cards = [
        card("NVIDIA H200", (9, 0), 140, gpu=GpuInfo(index=at, name="NVIDIA H200", utilisation=load))
        for at, load in enumerate(loads)
    ]
    devices = [replace(each, index=at) for at, each in enumerate(cards)]
    return Machine(host=HOST, driver=None, cuda=None, torch=None, devices=devices, notes=[])


def test_a_run_takes_the_freest_gpu_and_says_so():
    plan = plan_run(Request(), two_gpus(0.93, 0.0))

    assert plan.device.torch_name == "cuda:1"
    assert "cuda:1 has the most free capacity" in plan.notes[0]


def test_a_run_that_names_its_gpu_keeps_it_however_busy_it_is():
    plan = plan_run(Request(flags={"hardware.device": ("--device", "cuda:0")}), two_gpus(0.93, 0.0))

    assert plan.device.torch_name == "cuda:0"
    assert not any("most free" in note for note in plan.notes)


def test_no_command_plans_a_run_on_the_cpu_beside_a_gpu_that_torch_can_not_use(tmp_path):
    old = replace(
        card("Tesla V100", (7, 0), 16), usable=False, notes=["torch has no code for sm_70: install another."]
    )
    machine = replace(two_gpus(), devices=[old, cpu()])
    with pytest.raises(ConfigError, match=r"Tesla V100.*has no code") as refused:
        plan_run(Request(), machine)
    assert refused.value.exit_code == 2
    profile = tmp_path / "mine.toml"
    profile.write_text('[hardware]\ndevice = "cpu"\n')
    for request in (
        Request(None, {"hardware.device": ("--device", "cpu")}),
        Request(str(profile)),
        Request(None, {}, ("hardware.device=cpu",)),
    ):
        assert plan_run(request, machine).device.kind == "cpu"


def test_a_run_on_the_cpu_says_that_gpus_are_hidden():
    machine = replace(two_gpus(), devices=[cpu()], hidden="CUDA_VISIBLE_DEVICES= hides 1 of 1 GPUs.")
    assert machine.hidden in plan_run(Request(), machine).notes
    assert (
        machine.hidden not in plan_run(Request(None, {"hardware.device": ("--device", "cpu")}), machine).notes
    )


@pytest.mark.parametrize(
    ("kind", "count", "name"), [("cuda", 40, "resnet18"), ("cpu", 40, "resnet18"), ("cuda", 5200, "resnet50")]
)
def test_few_images_are_learnt_by_a_small_network_on_a_gpu_too(tmp_path, kind, count, name):
    named_images(tmp_path, {"train/a": count - 2, "train/b": 2, "val/a": 1, "val/b": 1})
    flags = {"data.path": ("--data", str(tmp_path))}
    given = resolve(None, task="classification", flags=flags, sets=(), environ={})
    resolved, _ = filled(given, device(kind))
    assert resolved.config.model.name == name
    assert resolved.sources["model.name"].endswith("training images") == (kind == "cuda" and count == 40)


@pytest.mark.parametrize(
    ("name", "network"), [("oxford-pets", "resnet18"), ("imagenette", "resnet50"), ("shapes", "resnet50")]
)
def test_a_set_by_its_name_has_the_network_that_a_folder_of_as_many_images_has(name, network):
    given = resolve(None, task="classification", flags={"data.name": ("--data", name)}, sets=(), environ={})
    resolved, _ = filled(given, device("cuda"))
    assert resolved.config.model.name == network
    assert resolved.sources["model.name"] == (
        "chosen: 3,680 training images" if name == "oxford-pets" else "chosen for one"
    )
