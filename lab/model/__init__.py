"""The decoder: attention, loss, sharding and generation; Hugging Face folders in and out."""
