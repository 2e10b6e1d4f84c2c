#!/usr/bin/env node
// Committed and executable, as npm links only programs that exist at installation, before the build.
import '../dist/install/main.js';
