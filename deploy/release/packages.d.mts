type Folders = Readonly<Record<'source' | 'work' | 'output', string>>;

export function writePackages(build: Folders & { arch: string; layers: object; commit: object }): void;
export function packChart(
  build: Readonly<Record<'chart' | 'source' | 'name' | 'work', string>> & { epochSeconds: number },
): void;
