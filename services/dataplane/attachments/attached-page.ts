import type { AttachedLink } from '../pods/kernel.js';

export interface Page {
  readonly limit: number;
  /** Only links whose names come after this one; empty for the first page. */
  readonly after: string;
}

export interface AttachedPage {
  readonly links: readonly AttachedLink[];
  /** Name of the last link when others follow. */
  readonly last: string | undefined;
}

/** @param all - in the order of the links' names */
export function pageOf(all: readonly AttachedLink[], { limit, after }: Page): AttachedPage {
  const following = all.filter(({ link }) => link.name > after);
  const links = following.slice(0, limit);
  return { links, last: following.length > limit ? links.at(-1)?.link.name : undefined };
}
