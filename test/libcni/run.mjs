// `npm run test:libcni`: tests with Go's libcni. Only they require Go and Debian's sources of the library.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { ensurePrograms, LIBCNI_PROGRAMS } from '../../deploy/local/programs.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

const missing = ensurePrograms(LIBCNI_PROGRAMS);
if (missing) {
  process.stderr.write(`npm run test:libcni needs Go and Debian's sources of libcni. ${missing}\n`);
  process.exit(1);
}
const { status } = spawnSync(process.execPath, [join(ROOT, 'test', 'run.mjs'), 'test/libcni'], { stdio: 'inherit' });
process.exit(status ?? 1);
