// Makes proto/gen anew from the .proto files: the TypeScript messages and services, the messages of the standard error
// model (AIP-193), and the descriptor image that server reflection serves.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const path = `${join(here, '..', 'node_modules', '.bin')}:${process.env.PATH}`;

function buf(...args) {
  const { status, error } = spawnSync('buf', args, {
    cwd: here,
    stdio: 'inherit',
    env: { ...process.env, PATH: path },
  });
  if (status !== 0) throw new Error(`buf ${args.join(' ')} failed: ${error?.message ?? `exit code ${status}`}`);
}

buf('generate');
buf('generate', '--template', 'buf.gen.google.yaml');
buf('build', '--path', 'podwire', '--as-file-descriptor-set', '-o', 'gen/image.binpb');
