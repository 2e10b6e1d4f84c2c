#!/usr/bin/env node
// Committed and executable, as npm links only programs that are there when it installs: what is built comes later.
import '../dist/main.js';
