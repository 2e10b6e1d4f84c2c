// Checks the format of the C++ (.clang-format) and searches it for faults (.clang-tidy); `--write` only formats it.
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { CPP_PROGRAMS, ensurePrograms } from '../deploy/local/programs.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..');
const ADDON_BUILD = join(ROOT, 'addon/build/config.gypi');
const INCLUDES = ['addon/src', 'addon/test/native', 'plugin/shim/src', 'plugin/shim/test'];

function filesOf(...patterns) {
  return execFileSync('git', ['ls-files', '-z', '-co', '--exclude-standard', '--', ...patterns], { cwd: ROOT })
    .toString()
    .split('\0')
    .filter((file) => file !== '' && existsSync(join(ROOT, file)));
}

/** Compiler options of the sources, with the headers of the Node.js that the addon was built for. */
function compilerOptions() {
  if (!existsSync(ADDON_BUILD)) throw new Error('addon: not built; run `npm run build -w @podwire/netlink`');
  const [, nodeFolder] = /"nodedir": "([^"]+)"/.exec(readFileSync(ADDON_BUILD, 'utf8'));
  const system = [join(nodeFolder, 'include/node'), 'node_modules/node-addon-api'];
  const defines = ['-DNAPI_VERSION=8', '-DNODE_ADDON_API_DISABLE_CPP_EXCEPTIONS'];
  return ['-std=c++17', ...defines, ...INCLUDES.map((path) => `-I${path}`), ...system.map((path) => `-isystem${path}`)];
}

/** Prints the findings of clang-tidy, one source per processor at a time. @returns whether there are none */
async function tidy() {
  const files = filesOf('*.cc');
  const options = compilerOptions();
  let isClean = true;
  const work = async () => {
    for (let file = files.shift(); file !== undefined; file = files.shift()) {
      try {
        await promisify(execFile)('clang-tidy', ['--quiet', file, '--', ...options], { cwd: ROOT });
      } catch (error) {
        isClean = false;
        process.stderr.write(`${error.stdout || error.message}\n`);
      }
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, work));
  return isClean;
}

/** Prints the faults. @returns whether there are none */
async function main(writes) {
  const fault = ensurePrograms(CPP_PROGRAMS);
  if (fault !== undefined) throw new Error(fault);
  const mode = writes ? ['-i'] : ['--dry-run', '--Werror'];
  const options = { cwd: ROOT, stdio: 'inherit' };
  const { status } = spawnSync('clang-format', [...mode, ...filesOf('*.cc', '*.h')], options);
  if (status !== 0) throw new Error('C++ is not formatted; run `npm run format`');
  return writes || tidy();
}

try {
  if (!(await main(process.argv.includes('--write')))) process.exitCode = 1;
} catch (error) {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
}
