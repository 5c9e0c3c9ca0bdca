"""``bsvi.adapters.scvi``: a trained SCVI model of scvi-tools, and its cells as batches."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bsvi.adapters.needs import library
from bsvi.adapters.own_noise import own_noise
from bsvi.model import VAE, DiagonalGaussian

Cells = dict[str, Tensor]  # counts and covariates of some cells, as scvi-tools names them
Rows = Sequence[int] | np.ndarray | Tensor  # numbers of cells, or a mask of all
TAKEN = ("SCVI", "LinearSCVI")


def scvi(
    model: Any, adata: Any = None, indices: Rows | None = None, batch_size: int = 128
) -> tuple["ScviVAE", "CellBatches"]:
    """A trained SCVI or LinearSCVI as a ``bsvi.Model``, and batches of its cells.

    All likelihoods, dispersions and covariates of SCVI are taken. A latent library size is a latent dimension more, measured
    from its prior's mean in its prior's standard deviations, so that the prior of all dimensions is N(0, I). "ln" latents are
    taken before their softmax, where their density is known.

    Args:
        model: the trained model
        adata: cells in place of those that it was trained on
        indices: which of the cells; all if None
        batch_size: cells of a batch; no number depends on it

    Returns:
        The model and its cells, for ``bsvi.evaluate``, ``bsvi.amortization_gap`` and ``bsvi.ais``.
    """
    scvi_tools = library("scvi", "scvi.model")
    if type(model) not in [getattr(scvi_tools, name) for name in TAKEN]:
        raise ValueError(
            f"bsvi.adapters.scvi cannot take {type(model).__name__}: its densities are not known here; it takes "
            f"{' and '.join(TAKEN)}, already trained"
        )
    if model.module is None or not model.is_trained:
        raise ValueError(f"this {type(model).__name__} is not trained; call its train() first")
    if model.module.minified_data_type is not None:
        raise ValueError("the model's data are minified, so the counts are gone; load it with its full data")
    if not (adata is None or hasattr(adata, "n_obs")):
        raise TypeError(f"adata must be an AnnData, got {type(adata).__name__}; read it first: anndata.read_h5ad(path)")
    cells = model._validate_anndata(adata)
    ids = torch.arange(cells.n_obs) if indices is None else _places(indices, cells.n_obs)
    loader = model._make_data_loader(adata=cells, indices=ids.numpy(), batch_size=batch_size)
    return ScviVAE(model.module), CellBatches(loader, ids)


class CellBatch(NamedTuple):
    """Some cells, and their rows in the AnnData."""

    x: Cells
    ids: Tensor


class CellBatches:
    """Batches of cells, each with ids that are their rows in the AnnData; can be gone through again and again."""

    def __init__(self, loader: Any, ids: Tensor) -> None:
        self.loader, self.ids = loader, ids

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[CellBatch]:
        at = 0
        for cells in self.loader:
            count = len(cells["X"])
            yield CellBatch(dict(cells), self.ids[at : at + count])
            at += count


class ScviVAE(VAE):
    """What ``bsvi.adapters.scvi`` returns; ``module`` is the network of scvi-tools. x is a dict of tensors, one row a cell."""

    def __init__(self, module: Any) -> None:
        super().__init__(module.z_encoder, module.decoder)
        self.module = module

    def encode(self, x: Cells) -> Tensor:
        """Mean and log-variance of q(z|x), and of the whitened library size where it is latent."""
        inputs = self.module._get_inference_input(x, full_forward_pass=True)
        with own_noise(x["X"]):  # it draws a z, unused here, and may have dropout
            output = self.module.inference(**inputs)
        mean, log_var = output["qz"].loc, 2 * output["qz"].scale.log()
        if not self.module.use_observed_lib_size:
            centre, scale = self._library_prior(x)
            mean = torch.cat([mean, (output["ql"].loc - centre) / scale], dim=-1)
            log_var = torch.cat([log_var, 2 * (output["ql"].scale / scale).log()], dim=-1)
        return torch.cat([mean, log_var], dim=-1)

    def posterior(self, lambda_: Tensor) -> DiagonalGaussian:  # type: ignore[override]
        """q(z; lambda); SVI clips the gradients of z and of a latent library size apart, each by mean and log-variance."""
        q, size = DiagonalGaussian(lambda_), lambda_.shape[-1] // 2 - 1
        if not self.module.use_observed_lib_size:
            q.blocks = {"z.mean": size, "library.mean": 1, "z.log_variance": size, "library.log_variance": 1}
        return q

    def log_lik(self, x: Cells, z: Tensor) -> Tensor:
        """ln p(x|z, library), summed over genes."""
        if self.module.use_observed_lib_size:
            size = x["X"].sum(1, keepdim=True).log()
        else:
            centre, scale = self._library_prior(x)
            z, size = z[:, :-1], centre + scale * z[:, -1:]
        latents = {"z": self.module.z_encoder.z_transformation(z), "library": size}
        output = self.module.generative(**self.module._get_generative_input(x, latents))
        return output["px"].log_prob(x["X"]).sum(-1)

    def _library_prior(self, x: Cells) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of ln(library size), each (batch, 1): those of the cell's experimental batch."""
        mean, variance = self.module._compute_local_library_params(x["batch"])
        return mean, variance.sqrt()


def _places(indices: Rows, count: int) -> Tensor:
    """The rows asked for: whole numbers, or a mask of all cells."""
    chosen = np.asarray(indices)
    if chosen.dtype == bool and chosen.shape == (count,):
        chosen = chosen.nonzero()[0]
    fits = chosen.ndim == 1 and chosen.size > 0 and chosen.dtype.kind in "iu"
    if not fits or chosen.min() < 0 or chosen.max() >= count:
        shown = " ".join(str(indices).split())
        raise ValueError(
            f"indices must name rows from 0 to {count - 1}, or be a mask of all {count} cells, got {shown[:60]}; leave them out "
            "for all cells"
        )
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("indices name a cell twice; name each once")
    return torch.from_numpy(chosen.astype(np.int64))
