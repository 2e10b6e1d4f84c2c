// Finds helm, or builds it.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

const PACKAGE = 'helm.sh/helm/v4/cmd/helm';
const VERSION = 'v4.3.1';

const isOnPath = (program, argument) => spawnSync(program, [argument], { stdio: 'ignore' }).status === 0;

/**
 * helm of the PATH, or one that is built once from its Go module into the user's cache folder.
 * @returns the program's name or path
 * @throws Error that names the missing program, or the build's exit code
 */
export function findHelm() {
  if (isOnPath('helm', 'version')) return 'helm';
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache');
  const folder = join(cache, 'podwire', `helm-${VERSION}`);
  const program = join(folder, 'helm');
  if (existsSync(program)) return program;
  if (!isOnPath('go', 'version'))
    throw new Error('helm: is not on the PATH, and there is no Go to build it; install helm 3 or 4, or Go');
  process.stdout.write(`Building helm ${VERSION}, once, into ${folder}. This takes some minutes.\n`);
  mkdirSync(folder, { recursive: true });
  const env = { ...process.env, CGO_ENABLED: '0', GOBIN: folder };
  const { status } = spawnSync('go', ['install', `${PACKAGE}@${VERSION}`], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  if (status !== 0) throw new Error(`go install ${PACKAGE}: ended with exit code ${status}; see its messages above`);
  return program;
}
