// `npm run check`: everything CI does, in the order in which it is cheapest to fail.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { prepare } from '../deploy/local/prepare.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..');

const STEPS = [
  { title: 'contract', command: ['npx', 'buf', 'lint'] },
  {
    title: 'generated code is what the contract gives',
    command: ['npm', 'run', '-s', 'generate'],
    leavesGitClean: 'proto/gen',
  },
  { title: 'lint and dependency directions', command: ['npx', 'eslint', '.'] },
  { title: 'format', command: ['npx', 'prettier', '--check', '--log-level', 'warn', '.'] },
  { title: 'format and faults of C++', command: ['node', '.ci/cpp.mjs'] },
  { title: 'tests', command: ['npm', 'run', '-s', 'test'] },
  { title: 'tests that depend on Node.js, with its other releases', command: ['npm', 'run', '-s', 'test:runtimes'] },
];

function run([command, ...args]) {
  return spawnSync(command, args, { cwd: ROOT, stdio: 'inherit' }).status === 0;
}

/** Whether nothing below the path differs from what git has, new files included. */
function isClean(path) {
  const { stdout } = spawnSync('git', ['status', '--porcelain', '--', path], { cwd: ROOT, encoding: 'utf8' });
  if (stdout !== '') process.stderr.write(`${stdout}commit what \`npm run generate\` made\n`);
  return stdout === '';
}

await prepare();
for (const { title, command, leavesGitClean } of STEPS) {
  process.stdout.write(`\n── ${title}\n`);
  if (!run(command) || (leavesGitClean !== undefined && !isClean(leavesGitClean))) {
    process.stderr.write(`\ncheck failed: ${title} (${command.join(' ')})\n`);
    process.exit(1);
  }
}
