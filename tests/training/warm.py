"""Imported by the server from which children are forked: does what torch puts off until an optimiser is first used.

Nothing here calls ``backward``: a process that has may not be forked.
"""

import torch
from torch import nn

parameter = nn.Parameter(torch.zeros(2))
parameter.grad = torch.ones(2)
torch.set_num_threads(1)
optimizer = torch.optim.Adam([parameter], amsgrad=True)
nn.utils.clip_grad_norm_([parameter], 1.0)
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    torch.distributions.Normal(0.0, 1.0).rsample()
