// Builds the image's root file system, one folder per layer, from a clean source tree.
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { ensurePrograms } from '../local/programs.mjs';
import { addBase } from './base.mjs';
import { addPodwire } from './podwire.mjs';
import { ARCHITECTURES, BUILD_PROGRAMS, DEBIAN, LAYERS } from './recipe.mjs';
import { addBillOfMaterials } from './sbom.mjs';
import { setTimes } from './tree.mjs';

/** Architecture of this machine, by Debian's name. */
const OWN = Object.keys(ARCHITECTURES).find((name) => ARCHITECTURES[name].node === process.arch);

/** Prefix of the compilers for an architecture: none where it is this machine's own. */
function toolPrefix(arch) {
  return arch === OWN ? '' : `${ARCHITECTURES[arch].gnu}-`;
}

/** Missing program of this machine, and its source; undefined when none is. */
export function machineFault(arch) {
  if (ARCHITECTURES[arch] === undefined) {
    return `architecture "${arch}" is unknown; use ${Object.keys(ARCHITECTURES).join(' or ')}`;
  }
  const release = existsSync('/etc/os-release') ? readFileSync('/etc/os-release', 'utf8') : '';
  const codename = /^VERSION_CODENAME=(.*)$/m.exec(release)?.[1];
  if (codename !== DEBIAN.codename) {
    return `the image needs Debian ${DEBIAN.codename} to build on, and this is ${codename ?? 'another system'}; build it there`;
  }
  const cross = toolPrefix(arch);
  const compilers = cross === '' ? {} : { [`${cross}g++`]: `g++-${ARCHITECTURES[arch].compiler}` };
  return ensurePrograms({ ...BUILD_PROGRAMS, ...compilers });
}

/**
 * Builds the layers below `output`.
 * @param build - arch; source: clean tree, compiled in place; output; epochSeconds: time of every file; revision: commit
 * @throws Error with the output of the step that failed
 */
export function buildRootfs({ arch, source, output, epochSeconds, revision }) {
  process.umask(0o022);
  rmSync(output, { recursive: true, force: true });
  const layers = Object.fromEntries(LAYERS.map((name) => [name, join(output, name)]));
  for (const layer of Object.values(layers)) mkdirSync(layer, { recursive: true });
  const work = join(output, 'work');
  mkdirSync(work);
  const build = { arch, source, work, names: ARCHITECTURES[arch], cross: toolPrefix(arch), epochSeconds, revision };
  const base = addBase({ ...build, layer: layers.base });
  const packages = addPodwire({ ...build, layer: layers.podwire, nodeFolder: base.nodeFolder });
  addBillOfMaterials({ ...build, layer: layers.podwire, base, packages });
  rmSync(work, { recursive: true, force: true });
  for (const layer of Object.values(layers)) setTimes(layer, epochSeconds);
  return layers;
}
