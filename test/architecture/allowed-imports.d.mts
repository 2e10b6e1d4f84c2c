import type { Rule } from 'eslint';

import type { Zone } from './directions.mjs';

export interface ImportTarget {
  readonly kind: 'file' | 'package' | 'builtin';
  /** Path from the root, name of the package, or specifier. */
  readonly name: string;
}

export function zoneOf(file: string): Zone | undefined;
export function targetOf(specifier: string, importer: string): ImportTarget;
export function faultOf(specifier: string, importer: string): string | undefined;
export const allowedImports: Rule.RuleModule;
