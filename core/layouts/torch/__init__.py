"""Whole state dicts as torch.save writes them: one file, or Hugging Face's `pytorch_model.bin` in several."""
