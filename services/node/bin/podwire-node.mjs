#!/usr/bin/env node
// Committed and executable, as npm links only programs that are there when it installs: what is built comes later.
import process from 'node:process';

await import(process.argv[2] === 'remove' ? '../dist/removal/main.js' : '../dist/main.js');
