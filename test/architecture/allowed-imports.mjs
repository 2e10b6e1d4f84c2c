// Lint rule: an import must be one that `directions.mjs` allows.
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

import { TEST_IMPORTS, WORKSPACES, ZONES } from './directions.mjs';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
/** Tests and test support. */
export const TEST_FILE = /\.test\.ts$|(^|\/)test(ing)?\//;

/** Folders of packages with sources or build results; a package's API has other paths. */
const LIBRARY_INSIDE = /\/(build|dist|src)\//;

/** The kind of a file by its name: the contract's messages and handlers, operations on the datastore, or rules. */
export function kindOf(file) {
  return /-(rpc|operations)\.ts$/.exec(file)?.[1] ?? 'rules';
}

/** Whether `place` covers a file: a file or folder, `folder/*` without subfolders, or `folder#kind`. */
function lies(file, place) {
  if (place.endsWith('/*')) return dirname(file) === place.slice(0, -2);
  const [folder, kind] = place.split('#');
  return (file === folder || file.startsWith(`${folder}/`)) && (kind === undefined || kind === kindOf(file));
}

/** The zone of a file, given by its path from the root. */
export function zoneOf(file) {
  const zones = ZONES.filter(({ path, kind }) => lies(file, kind === undefined ? path : `${path}#${kind}`));
  const weight = ({ path, kind }) => path.length + (kind === undefined ? 0 : 0.5);
  return zones.sort((a, b) => weight(b) - weight(a))[0];
}

/** Target of an import: a file of ours (by its path from the root), an npm package or a built-in module. */
export function targetOf(specifier, importer) {
  if (specifier.startsWith('node:')) return { kind: 'builtin', name: specifier };
  if (specifier.startsWith('.')) {
    return { kind: 'file', name: join(dirname(importer), specifier).replace(/\.js$/, '.ts') };
  }
  const [first, second, ...rest] = specifier.split('/');
  const name = first.startsWith('@') ? `${first}/${second}` : first;
  const path = first.startsWith('@') ? rest : [second, ...rest];
  const folder = WORKSPACES[name];
  return folder
    ? { kind: 'file', name: `${join(folder, ...path)}${path.length > 0 ? '.ts' : ''}` }
    : { kind: 'package', name };
}

/** Why the import is not allowed, or undefined. `importer` is a path from the root. */
export function faultOf(specifier, importer) {
  const zone = zoneOf(importer);
  if (!zone) return `${importer} lies in no zone of test/architecture/directions.mjs`;
  const target = targetOf(specifier, importer);
  const isTest = TEST_FILE.test(importer);
  const listed = (list, name) => list.includes('*') || list.includes(name);
  switch (target.kind) {
    case 'builtin':
      return listed(zone.builtins, target.name) || isTest ? undefined : `${zone.path} may not use ${target.name}`;
    case 'package':
      if (LIBRARY_INSIDE.test(specifier))
        return `${specifier} is the inside of ${target.name}, which may change any day`;
      return listed(zone.packages, target.name) || (isTest && TEST_IMPORTS.packages.includes(target.name))
        ? undefined
        : `${zone.path} may not import the package ${target.name}`;
    default:
      return fileFault({ zone, target: target.name, isTest });
  }
}

function fileFault({ zone, target, isTest }) {
  const own = zoneOf(target) === zone;
  if (!isTest && TEST_FILE.test(target)) return `${target} is of tests alone; move what the product needs out of it`;
  const allowed = zone.zones.some((path) => path === '*' || lies(target, path));
  const workspace = (path) =>
    path
      .split('/')
      .slice(0, /^(services|test\/conformance)\//.test(`${path}/`) ? 2 : 1)
      .join('/');
  const sameWorkspace = workspace(target) === workspace(zone.path);
  const testOfWorkspace = isTest && (sameWorkspace || lies(target, 'services/shared') || lies(target, 'proto/gen'));
  return own || allowed || testOfWorkspace ? undefined : `${zone.path} may not import ${target}`;
}

export const allowedImports = {
  meta: { type: 'problem', schema: [], docs: { description: 'imports follow test/architecture/directions.mjs' } },
  create(context) {
    const importer = relative(ROOT, context.filename).split(sep).join('/');
    const check = (node) => {
      if (typeof node.source?.value !== 'string') return;
      const fault = faultOf(node.source.value, importer);
      if (fault) context.report({ node: node.source, message: fault });
    };
    return {
      ImportDeclaration: check,
      ImportExpression: check,
      ExportNamedDeclaration: check,
      ExportAllDeclaration: check,
      TSImportType: check,
    };
  },
};
