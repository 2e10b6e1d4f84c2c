#!/usr/bin/env node
// Committed and executable, as npm links only programs that exist at installation, before the build.
import process from 'node:process';

await import(process.argv[2] === 'remove' ? '../dist/removal/main.js' : '../dist/main.js');
