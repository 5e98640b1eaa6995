"""The Transformer, and a trained model as a folder."""
