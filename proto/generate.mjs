// Generates proto/gen from the .proto files: the TypeScript messages and services, the messages of the standard error
// model (AIP-193), and the descriptor image that server reflection serves.
import { Buffer } from 'node:buffer';
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
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

// Reflection has to describe the health service and the details of errors too, which clients such as grpcurl print only if they
// know them. Descriptor sets, being one repeated field, are joined by concatenation.
const { resolve } = createRequire(import.meta.url);
const healthProto = join(dirname(resolve('grpc-health-check')), '..', '..', 'proto');
const googleProtos = dirname(resolve('google-proto-files/package.json'));
const errorProtos = ['error_details.proto', 'status.proto'].flatMap((file) => [
  '--path',
  join(googleProtos, 'google', 'rpc', file),
]);
const inputs = [['--path', 'podwire', '--path', 'calico'], [healthProto], [googleProtos, ...errorProtos]];
const images = inputs.map((input, index) => {
  const image = `gen/part-${index}.binpb`;
  buf('build', ...input, '--as-file-descriptor-set', '-o', image);
  const bytes = readFileSync(join(here, image));
  rmSync(join(here, image));
  return bytes;
});
writeFileSync(join(here, 'gen/image.binpb'), Buffer.concat(images));
