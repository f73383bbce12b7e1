"""Choose a Thompson batch from a pool of molecular fingerprints of any size, read part by part."""

# %% Make a catalogue: names, and fingerprints of 512 bits in families, packed eight to a byte
import tempfile
from pathlib import Path

import gpytorch
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import scalable_bo as sbo

NUM_MOLECULES = 20_000
NUM_BITS = 512
rng = np.random.default_rng(0)
scaffolds = rng.random((200, NUM_BITS)) < 0.05
families = rng.integers(200, size=NUM_MOLECULES)
bits = scaffolds[families] ^ (rng.random((NUM_MOLECULES, NUM_BITS)) < 0.01)
worth = rng.normal(size=NUM_BITS)
activity = bits @ worth / 4.0 + bits[:, 3] * bits[:, 7]  # to be found out by measuring

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "catalogue.parquet"
packed = [row.tobytes() for row in np.packbits(bits, axis=1)]
names = [f"M{i:05d}" for i in range(NUM_MOLECULES)]
pq.write_table(pa.table({"fingerprint": packed, "name": names}), path)
catalogue = sbo.FingerprintFile(path, "fingerprint", label="name")
print(f"{catalogue.num_rows} molecules of {catalogue.num_bits} bits")

# %% Two hundred were measured. Five batches of fifty follow, each with the best of fifty functions
bounds = torch.stack([torch.zeros(NUM_BITS), torch.ones(NUM_BITS)]).double()
measured = rng.choice(NUM_MOLECULES, 200, replace=False)
batches = [measured]
for _ in range(5):
    X = torch.as_tensor(bits[measured]).double()
    Y = torch.as_tensor(activity[measured]).unsqueeze(1)
    kernel = gpytorch.kernels.ScaleKernel(sbo.TanimotoKernel())
    model = sbo.fit(sbo.PathwiseGP(X, Y, covar_module=kernel), progress=False)
    chosen = sbo.ParallelThompsonSampling(model, bounds).choose(50, catalogue)
    print(f"{', '.join(chosen.labels[:3])}, …: best {activity[chosen.rows].max():.2f}")
    batches.append(chosen.rows.numpy())
    measured = np.concatenate([measured, batches[-1]])
folder.cleanup()

# %% Batch after batch moves into the tail of the catalogue
figure, axes = plt.subplots(figsize=(7, 4))
axes.hist(activity, bins=80, color="0.85", label="the catalogue")
counts = axes.twinx()
counts.set_yticks([])
for number, rows in enumerate(batches):
    counts.scatter(
        activity[rows],
        np.full(len(rows), number),
        s=9,
        color=plt.get_cmap("viridis")(number / 6),
        label="measured at first" if number == 0 else f"batch {number}",
    )
axes.set_xlabel("activity")
axes.set_ylabel("molecules")
figure.legend(loc="outside right upper")
print("the best of the catalogue:", f"{activity.max():.2f}; found: {activity[measured].max():.2f}")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/molecule_pool.png")
print("wrote results/molecule_pool.png")
