"""Training the detector on Ray Train: LoRA SFT, DR-GRPO with the constraint-attribution reward, sweeps, adapters."""

import warnings

# TRL names the vLLM versions it was tried with at every import, also where no vLLM is used.
warnings.filterwarnings("ignore", message="TRL currently supports vLLM")
