"""Carries out the plans of target ranks: reads, scatters and writes, block by block."""
