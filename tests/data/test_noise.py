"""Diffusion noise follows the schedule, and depends only on seed, epoch and sample."""

from typing import Any

import numpy as np
import pytest
import torch

from mptui.data.batch import Batch
from mptui.data.loader import Loader
from mptui.data.noise import Noiser, Noising, normals
from mptui.data.noise_schedule import TIMESTEPS, alphas_cumprod, min_snr_weights
from mptui.engine.micro_batches import rows_of
from mptui.registry.names import SampleKind
from tests.data.samples import Samples
from tests.made.loaders import built_loader

CPU = torch.device("cpu")
SIDE = 12


def noiser(**settings: Any) -> Noiser:
    return Noiser(
        **{
            "seed": 3,
            "device": CPU,
            "channels_last": True,
            "train": True,
            "mirror": False,
            "noising": Noising(),
            **settings,
        }
    )


def loader(count: int = 22, **settings: Any) -> Loader:
    chosen: dict[str, Any] = {"batch_size": 8, "train": True, "augment": True, **settings}
    return built_loader(
        Samples(count), kind=SampleKind.IMAGE, side=SIDE, num_classes=10, device=CPU, seed=5, **chosen
    )


def by_sample(of: Loader, epoch: int = 0) -> dict[int, tuple[bytes, bytes, int]]:
    """Return noisy image, noise and timestep of each sample."""
    found = {}
    with of:
        for window in of.windows(epoch, 1):
            for batch in window:
                assert batch.timesteps is not None
                for row, index in enumerate(batch.sample_indices.tolist()):
                    image, noise = (t[row].contiguous() for t in (batch.images_BCHW, batch.targets))
                    step = int(batch.timesteps[row])
                    found[index] = image.numpy().tobytes(), noise.numpy().tobytes(), step
    return found


def test_the_schedule_falls_from_an_image_to_noise_as_a_cosine():
    alpha_bar = alphas_cumprod()
    assert alpha_bar.shape == (TIMESTEPS,)
    assert (np.diff(alpha_bar) < 0).all()
    assert alpha_bar[0] > 0.9999
    assert 0 < alpha_bar[-1] < 1e-4
    middle = np.cos((0.5 + 0.008) / 1.008 * np.pi / 2) ** 2 / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    assert alpha_bar[TIMESTEPS // 2 - 1] == pytest.approx(middle, rel=1e-6)


def test_the_linear_schedule_is_that_of_ho_et_al():
    alpha_bar = alphas_cumprod("linear")
    assert alpha_bar[0] == pytest.approx(1 - 1e-4, rel=1e-12)
    assert alpha_bar[1] / alpha_bar[0] == pytest.approx(1 - 1e-4 - (0.02 - 1e-4) / 999, rel=1e-12)
    assert alpha_bar[-1] == pytest.approx(4.036e-5, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_little_noise_is_added_as_in_float64_under_any_precision(schedule, prediction, dtype):
    images = torch.rand(3000, 3, 4, 4) * 2 - 1
    makes = noiser(train=False, noising=Noising(schedule, prediction))
    noise = noiser(train=False).noised(images, np.arange(3000), 0)[1].double()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        noisy, target, timesteps = makes.noised(images, np.arange(3000), 0)
    assert noisy.dtype == target.dtype == torch.float32
    rows = timesteps < 50
    assert sorted(set(timesteps[rows].tolist())) == list(range(50))
    alpha_bar = torch.from_numpy(alphas_cumprod(schedule))[timesteps].view(-1, 1, 1, 1)
    image_share, noise_share, images = alpha_bar.sqrt(), (1 - alpha_bar).sqrt(), images.double()
    exact = image_share * images + noise_share * noise
    torch.testing.assert_close(noisy[rows].double(), exact[rows], rtol=1e-4, atol=1e-6)
    v = image_share * noise - noise_share * images
    torch.testing.assert_close(target.double(), noise if prediction == "epsilon" else v, rtol=1e-4, atol=1e-6)


def test_min_snr_weighs_the_error_of_the_image_by_at_most_gamma():
    for schedule in ("cosine", "linear"):
        alpha_bar = alphas_cumprod(schedule)
        snr = alpha_bar / (1 - alpha_bar)
        # an error e of the image is one of sqrt(snr) x e of the noise, and of sqrt(snr + 1) x e of v
        of_image = min_snr_weights(schedule, "epsilon", 5.0) * snr
        np.testing.assert_allclose(of_image, np.minimum(snr, 5.0), rtol=1e-9)
        np.testing.assert_allclose(
            min_snr_weights(schedule, "v", 5.0) * (snr + 1), np.minimum(snr, 5.0), rtol=1e-9
        )


def test_the_noise_is_normal_and_of_each_sample_its_own():
    noise = normals(torch.arange(64) * 7919, 3001)
    assert noise.shape == (64, 3001)
    assert noise.dtype == torch.float32
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.var()) == pytest.approx(1, abs=0.02)
    assert float((noise**4).mean()) == pytest.approx(3, abs=0.1)
    likeness = torch.corrcoef(noise) - torch.eye(64)
    assert float(likeness.abs().max()) < 0.1


def test_a_noisy_image_is_the_image_and_its_noise_by_the_schedule():
    images = torch.rand(40, 3, SIDE, SIDE) * 2 - 1
    noisy, noise, timesteps = noiser().noised(images, np.arange(40), 2)
    alpha_bar = torch.from_numpy(alphas_cumprod())[timesteps].view(-1, 1, 1, 1)
    torch.testing.assert_close(
        noisy.double(), alpha_bar.sqrt() * images + (1 - alpha_bar).sqrt() * noise, atol=1e-6, rtol=0
    )


def test_neither_the_company_nor_the_layout_of_a_sample_changes_its_noise():
    images, indices = torch.rand(6, 3, SIDE, SIDE), np.array([5, 3, 11, 4, 0, 7])
    whole = noiser().noised(images, indices, 1)
    alone = noiser().noised(images[2:4], indices[2:4], 1)
    assert all(torch.equal(one[2:4], other) for one, other in zip(whole, alone, strict=True))
    planes = noiser(channels_last=False).noised(images, indices, 1)
    assert whole[1].is_contiguous(memory_format=torch.channels_last)
    assert planes[1].is_contiguous()
    assert torch.equal(planes[1], whole[1])
    later = noiser().noised(images, indices, 2)
    assert not any(torch.equal(one, other) for one, other in zip(whole, later, strict=True))


def test_training_draws_all_timesteps_and_validation_spreads_them_evenly():
    images, indices = torch.zeros(4096, 1, 2, 2), np.arange(4096)
    tenths = [
        np.histogram(noiser(train=train).noised(images, indices, 0)[2], bins=10, range=(0, TIMESTEPS))[0]
        for train in (True, False)
    ]
    assert abs(tenths[0] - 409.6).max() < 100
    assert abs(tenths[1] - 409.6).max() < 5
    few = noiser(train=False).noised(images[:8], indices[100:108], 0)[2].sort().values
    assert few.diff().max() < 250


def test_every_other_image_is_turned_over_in_training():
    images = torch.rand(200, 3, SIDE, SIDE) * 2 - 1
    plain, _, _ = noiser().noised(images, np.arange(200), 0)
    turned, noise, steps = noiser(mirror=True).noised(images, np.arange(200), 0)
    alpha_bar = torch.from_numpy(alphas_cumprod()).float()[steps].view(-1, 1, 1, 1)
    mirrored = [
        bool(
            torch.allclose(
                turned[n],
                (alpha_bar[n].sqrt() * images[n].flip(2) + (1 - alpha_bar[n]).sqrt() * noise[n]),
                atol=1e-5,
            )
        )
        for n in range(200)
    ]
    assert 70 < sum(mirrored) < 130
    assert all(torch.equal(turned[n], plain[n]) for n in range(200) if not mirrored[n])


def test_a_loader_gives_a_sample_the_same_bits_in_any_batch_and_from_any_cache():
    expected = by_sample(loader(), epoch=1)
    assert by_sample(loader(batch_size=5), epoch=1) == expected
    assert by_sample(loader(cache="device"), epoch=1) == expected
    assert by_sample(loader(cache="ram"), epoch=1) == expected
    assert {key: value[1:] for key, value in by_sample(loader(channels_last=False), epoch=1).items()} == {
        key: value[1:] for key, value in expected.items()
    }


def test_every_validation_sees_the_same_noise():
    val = loader(train=False)
    with val:
        first, second = ([b for w in val.windows(0, 1) for b in w] for _ in range(2))
    assert all(torch.equal(a.images_BCHW, b.images_BCHW) for a, b in zip(first, second, strict=True))
    last = first[-1]
    assert last.size == 6
    assert [len(t) for t in (last.images_BCHW, last.targets, *last.inputs)] == [6] * 4


def labels_of(of: Loader, epoch: int = 0) -> dict[int, int]:
    """Return the label of each sample that the network is given."""
    with of:
        batches = [b for window in of.windows(epoch, 1) for b in window]
    assert all(len(b.inputs) == 3 and b.labels is not None for b in batches)
    rows = [zip(b.sample_indices.tolist(), b.inputs[2].tolist(), strict=False) for b in batches]
    return dict(pair for row in rows for pair in row)


def test_labels_go_to_the_network_and_some_are_hidden_in_training_alone():
    noising = Noising(null_label=10, label_dropout=0.5)
    true = labels_of(loader(60, train=False, noising=noising))
    given = labels_of(loader(60, noising=noising))
    assert set(true.values()) <= set(range(10))
    assert len(set(true.values())) > 1
    assert all(given[index] in {10, label} for index, label in true.items())
    assert 15 < sum(label == 10 for label in given.values()) < 45
    assert labels_of(loader(60, noising=noising, batch_size=7, cache="device")) == given
    assert labels_of(loader(60, noising=noising), epoch=1) != given
    assert labels_of(loader(60, noising=Noising(null_label=10, label_dropout=0.0))) == true


def test_images_are_scaled_from_minus_one_to_one():
    with loader(train=False) as val:
        batch = next(b for window in val.windows(0, 1) for b in window)
    alpha_bar = torch.from_numpy(alphas_cumprod()).float()[batch.timesteps].view(-1, 1, 1, 1)
    clean = (batch.images_BCHW - (1 - alpha_bar).sqrt() * batch.targets) / alpha_bar.sqrt()
    least_noisy = clean[alpha_bar.flatten() > 0.01]
    assert -1.001 < float(least_noisy.min()) < -0.5
    assert 0.5 < float(least_noisy.max()) < 1.001


def test_a_piece_of_a_batch_keeps_its_noise_and_its_timesteps():
    with loader() as train:
        batch = next(b for window in train.windows(0, 1) for b in window)
    piece: Batch = rows_of(batch, 3, 6)
    assert piece.timesteps is not None
    assert batch.timesteps is not None
    assert torch.equal(piece.timesteps, batch.timesteps[3:6])
    assert torch.equal(piece.targets, batch.targets[3:6])
    assert (piece.size, piece.valid, len(piece.sample_indices)) == (3, 3, 3)
