import { expect, test } from 'vitest';

import { parseCommandLine } from './command-line.js';

test.each([
  [['install'], { name: 'install', scope: 'all', replaces: false, waits: true }],
  [
    ['install', '--no-wait', '--replace', '--binaries-only'],
    { name: 'install', scope: 'binaries', replaces: true, waits: false },
  ],
  [['uninstall', '--binaries-only'], { name: 'uninstall', scope: 'binaries' }],
  [['check-install'], { name: 'check-install', scope: 'all' }],
  [['--version'], { name: 'version' }],
  [['uninstall', '-h'], { name: 'help' }],
])('%j is accepted', (args, command) => expect(parseCommandLine(args)).toEqual(command));

test.each([
  [[], 'the command is missing'],
  [['remove'], 'unknown command "remove"'],
  [['toString'], 'unknown command "toString"'],
  [['uninstall', '--no-wait'], 'unknown option "--no-wait" of "uninstall"'],
  [['install', 'now'], 'unknown option "now" of "install"'],
])('%j is refused: %s', (args, reason) => expect(parseCommandLine(args)).toEqual({ name: 'invalid', reason }));
