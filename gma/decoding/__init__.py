"""Translating with a trained model: batches of growing sentences, greedy and beam search, streams."""
