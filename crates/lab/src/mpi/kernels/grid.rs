//! Processes in a grid of three dimensions, which is closed to a ring in each.

/// A grid of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Processes in each dimension.
    pub sides: [usize; 3],
}

impl Grid {
    /// 4×4×4 and 8×4×4 as in M; otherwise powers of two, the first sides longest.
    pub fn new(processes: usize) -> Grid {
        let mut sides = [1; 3];
        let mut next = 0;
        while sides.iter().product::<usize>() < processes {
            sides[next] *= 2;
            next = (next + 1) % 3;
        }
        Grid { sides }
    }

    pub fn processes(&self) -> usize {
        self.sides.iter().product()
    }

    /// The process `steps` beside another in a dimension.
    pub fn beside(&self, rank: usize, dimension: usize, steps: isize) -> usize {
        let stride: usize = self.sides[..dimension].iter().product();
        let side = self.sides[dimension] as isize;
        let at = (rank / stride) as isize % side;
        let to = (at + steps).rem_euclid(side);
        (rank as isize + (to - at) * stride as isize) as usize
    }

    /// The sides of the part of a cube that a process has.
    pub fn part(&self, cube: u64) -> [u64; 3] {
        self.sides.map(|side| cube / side as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_leads_to_the_process() {
        assert_eq!([16, 64, 128].map(|n| Grid::new(n).sides), [[4, 2, 2], [4, 4, 4], [8, 4, 4]]);
        let grid = Grid::new(128);
        for rank in 0..128 {
            for dimension in 0..3 {
                let beside = grid.beside(rank, dimension, 1);
                assert_eq!(grid.beside(beside, dimension, -1), rank);
                assert_ne!(beside, rank);
            }
        }
        assert_eq!((grid.beside(7, 0, 1), grid.beside(0, 2, -1)), (0, 96));
    }
}
