"""What tests of several folders share: tiny configs, callbacks that stop a run, a corridor that tells where one is."""
