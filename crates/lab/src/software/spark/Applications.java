import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.Set;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.mllib.evaluation.RankingMetrics;
import org.apache.spark.mllib.recommendation.ALS;
import org.apache.spark.mllib.recommendation.MatrixFactorizationModel;
import org.apache.spark.mllib.recommendation.Rating;
import scala.Tuple2;

/**
 * The computations of three of Spark's examples: SparkTC, mllib.RecommendationExample and mllib.RankingMetricsExample. Maven
 * Central has Spark, but not its examples, so that these are written anew; their ratings are random, with a seed.
 *
 * SparkUCX 1.0 for Spark 3.0 has room in a shuffle's metadata for as many maps as there are reducers. So no shuffle here has
 * more maps than reducers, which SparkTC has.
 *
 * Arguments: the application, partitions, and its size (see each).
 */
public class Applications {
    private static final long SEED = 42;
    private static final int RANK = 10;
    private static final double LAMBDA = 0.01;

    public static void main(String[] arguments) {
        String name = arguments[0];
        int partitions = Integer.parseInt(arguments[1]);
        int size = Integer.parseInt(arguments[2]);
        JavaSparkContext spark = new JavaSparkContext(new SparkConf().setAppName(name));
        long begin = System.nanoTime();
        double result = run(spark, name, partitions, size);
        double seconds = (System.nanoTime() - begin) / 1e9;
        System.out.printf(Locale.ROOT, "{\"seconds\": %.6f, \"result\": %.6f}%n", seconds, result);
        spark.stop();
    }

    private static double run(JavaSparkContext spark, String name, int partitions, int size) {
        switch (name) {
            case "SparkTC":
                return closure(spark, partitions, size);
            case "RecommendationExample":
                return recommendation(spark, partitions, size);
            case "RankingMetricsExample":
                return ranking(spark, partitions, size);
            default:
                throw new IllegalArgumentException("there is no application " + name);
        }
    }

    /** The number of edges in the transitive closure of a random graph of `size` vertices and twice as many edges. */
    private static double closure(JavaSparkContext spark, int partitions, int size) {
        Random random = new Random(SEED);
        Set<Tuple2<Integer, Integer>> edges = new HashSet<>();
        while (edges.size() < 2 * size) {
            int from = random.nextInt(size);
            int to = random.nextInt(size);
            if (from != to) {
                edges.add(new Tuple2<>(from, to));
            }
        }
        JavaPairRDD<Integer, Integer> paths = spark.parallelizePairs(new ArrayList<>(edges), partitions).cache();
        JavaPairRDD<Integer, Integer> reversed = paths.mapToPair(Tuple2::swap);
        long before;
        long count = paths.count();
        do {
            before = count;
            JavaPairRDD<Integer, Integer> longer =
                paths.join(reversed, partitions).mapToPair(joined -> joined._2().swap());
            paths = paths.union(longer).coalesce(partitions).distinct(partitions).cache();
            count = paths.count();
        } while (count != before);
        return count;
    }

    /** The mean squared error of predictions by a model of `size` users' ratings. */
    private static double recommendation(JavaSparkContext spark, int partitions, int size) {
        JavaRDD<Rating> ratings = ratings(spark, partitions, size);
        MatrixFactorizationModel model = ALS.train(ratings.rdd(), RANK, iterations(size), LAMBDA, partitions);
        JavaPairRDD<Tuple2<Integer, Integer>, Double> predicted = predictions(model, ratings);
        return byPair(ratings)
            .join(predicted, partitions)
            .values()
            .mapToDouble(both -> Math.pow(both._1() - both._2(), 2))
            .mean();
    }

    /** The mean average precision of ten recommendations for each of `size` users. */
    private static double ranking(JavaSparkContext spark, int partitions, int size) {
        JavaRDD<Rating> ratings =
            ratings(spark, partitions, size).map(each -> new Rating(each.user(), each.product(), each.rating() - 2.5)).cache();
        ratings.map(Rating::user).distinct(partitions).count();
        ratings.map(Rating::product).distinct(partitions).count();
        MatrixFactorizationModel model = ALS.train(ratings.rdd(), RANK, iterations(size), LAMBDA, partitions);
        JavaPairRDD<Integer, List<Integer>> recommended =
            model.recommendProductsForUsers(10).toJavaRDD().mapToPair(each -> {
                List<Integer> products = new ArrayList<>();
                for (Rating rating : each._2()) {
                    products.add(rating.product());
                }
                return new Tuple2<>((Integer) each._1(), products);
            });
        int reducers = Math.max(partitions, recommended.getNumPartitions());
        JavaPairRDD<Integer, List<Integer>> liked = ratings.mapToPair(each -> new Tuple2<>(each.user(), each))
            .groupByKey(partitions)
            .mapValues(all -> {
                List<Integer> products = new ArrayList<>();
                for (Rating rating : all) {
                    if (rating.rating() > 0) {
                        products.add(rating.product());
                    }
                }
                return products;
            });
        JavaRDD<Tuple2<List<Integer>, List<Integer>>> both = liked.join(recommended, reducers).values().map(Tuple2::swap);
        double precision = RankingMetrics.of(both).meanAveragePrecision();
        byPair(ratings).join(predictions(model, ratings), partitions).count();
        return precision;
    }

    private static JavaPairRDD<Tuple2<Integer, Integer>, Double> predictions(
        MatrixFactorizationModel model, JavaRDD<Rating> ratings) {
        JavaPairRDD<Integer, Integer> pairs = ratings.mapToPair(each -> new Tuple2<>(each.user(), each.product()));
        return byPair(model.predict(pairs));
    }

    private static JavaPairRDD<Tuple2<Integer, Integer>, Double> byPair(JavaRDD<Rating> ratings) {
        return ratings.mapToPair(each -> new Tuple2<>(new Tuple2<>(each.user(), each.product()), each.rating()));
    }

    /** A rating of 1 to 5 of about a third of all products, of which there are three for each user, up to 100. */
    private static JavaRDD<Rating> ratings(JavaSparkContext spark, int partitions, int size) {
        Random random = new Random(SEED);
        int products = Math.min(3 * size, 100);
        List<Rating> all = new ArrayList<>();
        for (int user = 0; user < size; user++) {
            for (int product = 0; product < products; product++) {
                if (random.nextInt(3) == 0) {
                    all.add(new Rating(user, product, 1 + random.nextInt(5)));
                }
            }
        }
        Collections.shuffle(all, random);
        return spark.parallelize(all, partitions);
    }

    /** As in Spark's examples, and few in a small run. */
    private static int iterations(int size) {
        return size < 30 ? 2 : 10;
    }
}
