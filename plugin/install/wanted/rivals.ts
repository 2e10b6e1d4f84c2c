import type { Conflisted } from '../conflist.js';

/** A file in the directory of network configurations. */
export interface ConfigFile {
  readonly name: string;
  readonly content: Conflisted;
}

/** The file endings that libcni and container runtimes load. */
const LOADED = /\.(conf|conflist|json)$/;

/** Whether a runtime would load the file. */
export function isLoaded(name: string): boolean {
  return LOADED.test(name);
}

/**
 * What others left beside our configuration that an operator has to know of: runtimes load the first file in alphabetical
 * order, so one before ours is what pods get, and a Calico that is still installed puts its own back.
 * @param ours - name of our file, which need not be among the files
 */
export function rivalWarnings(files: readonly ConfigFile[], ours: string): string[] {
  return files.flatMap(({ name, content }) => {
    if (name === ours || !isLoaded(name)) return [];
    const warnings: string[] = [];
    if (name < ours) {
      warnings.push(
        `${name} comes before ${ours}, so container runtimes use it instead: remove it, or set CNI_CONF_NAME`,
      );
    }
    if (content.kind === 'foreign' && content.types.some((type) => type.startsWith('calico'))) {
      warnings.push(`${name} is Calico’s: remove it, and Calico’s installer, or set CNI_OLD_CONF_NAME=${name}`);
    }
    if (content.kind === 'ours') {
      warnings.push(`${name} has a podwire plugin too: remove it, or set CNI_OLD_CONF_NAME=${name}`);
    }
    return warnings;
  });
}
