#!/usr/bin/env node
// Committed and executable, as npm links only programs that exist when it installs; the build comes later.
import '../dist/main.js';
