export function isShipped(path: string): boolean;
export function matches(glob: string, path: string): boolean;
