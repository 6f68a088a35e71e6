"""Pure planning: which source bytes fill which target bytes. Sees catalog records, never a storage."""
