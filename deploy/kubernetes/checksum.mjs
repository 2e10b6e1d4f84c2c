// Ties the rendered YAML to the chart without helm: a test compares the checksum in its header.
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const FOLDER = dirname(fileURLToPath(import.meta.url));

export const CHART = join(FOLDER, 'chart');
export const RENDERED = join(FOLDER, 'podwire.yaml');
export const NAMESPACE = 'podwire-system';

export const UNINSTALL = join(FOLDER, 'uninstall.yaml');

/** Arguments of helm that render the plain YAML of the chart, and of its removal. */
export const RENDER = [
  'template',
  'podwire',
  CHART,
  '--namespace',
  NAMESPACE,
  '--set',
  'namespace.create=true',
  '--skip-tests',
];

const MARK = '# chart-sha256: ';
export const RENDER_UNINSTALL = [...RENDER, '--set', 'uninstall=true', '--show-only', 'templates/uninstall.yaml'];

/** SHA-256 of the names and contents of the chart's files, and of the arguments of the rendering. */
export function chartChecksum() {
  const hash = createHash('sha256');
  // Directory entries with types would leave out linked files, and depend on the release of Node.js.
  const files = readdirSync(CHART, { recursive: true })
    .filter((name) => statSync(join(CHART, name)).isFile())
    .sort();
  for (const file of files)
    hash
      .update(`${file}\0`)
      .update(readFileSync(join(CHART, file)))
      .update('\0');
  return hash.update(RENDER.filter((argument) => argument !== CHART).join('\0')).digest('hex');
}

/** The first lines of the rendered YAML. */
export function header() {
  return `# Rendered from deploy/kubernetes/chart by \`npm run manifests\`. Do not edit: change the chart's values.\n${MARK}${chartChecksum()}\n`;
}

/** The checksum in the header of a rendered file; undefined without one. */
export function checksumOf(text) {
  return text
    .split('\n')
    .find((line) => line.startsWith(MARK))
    ?.slice(MARK.length);
}
