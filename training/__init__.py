"""Training the detector on Ray Train: LoRA SFT, DR-GRPO with the constraint-attribution reward, sweeps, adapters."""
